# The CPU environment in an image, with the default model inside: `docker run batchfact run IN.parquet OUT.parquet`.
# Not built where batchfact is developed (there is no network for base images there): tell us where it fails.
FROM python:3.11-slim

# make and git as for a checkout, g++ for --compile; libnuma lets vLLM bind memory to cores.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make git g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/batchfact
ENV VENV=/opt/venv \
    PATH=/opt/venv/bin:$PATH \
    BATCHFACT_CACHE=/opt/batchfact-cache

# Packages first: this layer is made again only when they change, not with every edit of the code.
COPY Makefile pyproject.toml README.md LICENSE ./
COPY requirements requirements
RUN make packages && rm -rf /root/.cache/pip

COPY . .
RUN make venv && batchfact models pull smollm2-135m-factual && rm -rf /root/.cache/pip

# Mount the folder with the Parquet files here.
WORKDIR /data
ENTRYPOINT ["batchfact"]
CMD ["--help"]
