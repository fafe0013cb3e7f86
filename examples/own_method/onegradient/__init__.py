from bouquet.common.methods import Method

METHOD = Method(
    strategy="onegradient.strategy:OneGradient",
    procedures={"first-gradient": "onegradient.device"},
    plots="onegradient.plots",
)
