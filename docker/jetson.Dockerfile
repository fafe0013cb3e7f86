# The client on a Jetson, on NVIDIA's PyTorch for its GPU. Build it on the Jetson:
#
#   docker build -f docker/jetson.Dockerfile --build-arg BASE=nvcr.io/nvidia/pytorch:25.12-py3 -t bouquet-jetson .
#
# BASE is an image with Python 3.11 or newer and PyTorch 2.9 or newer for the GPU of this Jetson; docs/containers.md says
# which, and what of this could be tried without one.
ARG BASE=nvcr.io/nvidia/pytorch:25.12-py3

FROM ${BASE}
WORKDIR /build
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY bouquet bouquet
COPY client client
COPY common common
COPY experiments experiments
COPY server server
COPY strategies strategies
# PyTorch, and the NumPy that it was built with, are NVIDIA's; their image pins its own packages, which are left alone.
RUN unset PIP_CONSTRAINT \
    && python3 -c "import torch; print('PyTorch', torch.__version__)" \
    && python3 -m venv --without-pip --system-site-packages /opt/bouquet \
    && awk '/^[^ ]/ { skip = /^numpy==/ } !skip' requirements.lock > versions.lock \
    && pip="python3 -m pip --python /opt/bouquet/bin/python install --no-cache-dir --disable-pip-version-check" \
    && $pip --require-hashes --no-deps -r versions.lock \
    && $pip --no-deps --no-build-isolation . \
    && rm -f /opt/bouquet/bin/uv /opt/bouquet/bin/uvx
RUN (getent passwd 1000 || useradd --uid 1000 --user-group --no-create-home --shell /usr/sbin/nologin bouquet) \
    && install -d -o 1000 -g 1000 /state /keys
ENV PATH=/opt/bouquet/bin:$PATH HOME=/state BOUQUET_HEALTH=127.0.0.1:9093
USER 1000:1000
WORKDIR /state
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "-P", "-m", "bouquet.common.system.health"]
ENTRYPOINT ["bouquet"]
CMD ["--help"]
