# Cloud Sandbox. `make help` lists what there is.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory

GVISOR   := $(shell awk '$$1 == "gvisor.dev/gvisor" {print $$2; exit}' go.mod)
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -s -w
OUT      ?= bin
STAGE    := $(OUT)/stage
TOOLS    := $(CURDIR)/.tools
ADDR     ?= localhost:8080
DATA     ?= /var/lib/cloud-sandbox
SETTINGS ?=

export CGO_ENABLED ?= 0
export GOFLAGS     ?= -trimpath -buildvcs=false

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## install what is missing, build, start the server and run a first snippet
	@ADDR='$(ADDR)' DATA='$(DATA)' scripts/run.sh

.PHONY: build
build: build-all ## build bin/cloud-sandbox with everything inside, and the four roles, each a program of its own

# Every Go build is cheap when nothing changed, so they are always asked.
.PHONY: FORCE
FORCE:

$(STAGE)/gvisor_sentry: FORCE
	@mkdir -p $(@D)
	@go build $$(scripts/gvisor.sh) -ldflags '$(LDFLAGS) -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR)' -o $@ ./cmd/sentry

$(STAGE)/link: FORCE
	@mkdir -p $(@D)
	@go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/link

$(STAGE)/guest/guest: FORCE
	@mkdir -p $(@D)
	@go build -tags linkname -ldflags '$(LDFLAGS) -checklinkname=0' -o $@ ./cmd/guest # it sets a variable of the runtime: forcegc_linked.go

$(STAGE)/guest.erofs: $(STAGE)/guest/guest
	@scripts/pack.sh guest $(STAGE)/guest $@

# Without the parts inside: it reads them from the folder it lies in.
$(STAGE)/cloud-sandbox: FORCE
	@mkdir -p $(@D)
	@go build -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o $@ ./cmd/cloud-sandbox

$(OUT)/cloud-sandbox: $(STAGE)/gvisor_sentry $(STAGE)/link $(STAGE)/guest.erofs FORCE
	@scripts/pack.sh payload $(STAGE) internal/engine/gvisor/payload/files
	@go build -tags payload -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o $@ ./cmd/cloud-sandbox

# The node carries the same parts; the other roles are one file each.
$(OUT)/node: $(OUT)/cloud-sandbox FORCE
	@go build -tags payload -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o $@ ./cmd/node

$(OUT)/gateway $(OUT)/session-manager $(OUT)/scheduler: FORCE
	@go build -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o $@ ./cmd/$(@F)

.PHONY: build-all
build-all: $(OUT)/cloud-sandbox $(OUT)/gateway $(OUT)/session-manager $(OUT)/scheduler $(OUT)/node ## the same as build

ARCHES ?= arm64 amd64
CLIENTS ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64 windows-arm64

.PHONY: clients
clients: ## build the command line alone for Linux, macOS and Windows into bin/clients
	@rm -rf bin/clients && mkdir -p bin/clients
	@for t in $(CLIENTS); do exe=; [[ $$t == windows-* ]] && exe=.exe; \
	  GOOS=$${t%-*} GOARCH=$${t#*-} go build -tags client -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o bin/clients/cloud-sandbox-$$t$$exe ./cmd/cloud-sandbox; done

.PHONY: release
release: clients ## make a release in bin/release: programs, packages, command lines, template, SBOMs, sums; see docs/operators-guide.md
	@for arch in $(ARCHES); do GOARCH=$$arch $(MAKE) build-all OUT=bin/linux-$$arch; scripts/sbom.sh bin/linux-$$arch '$(VERSION)'; done
	@DATA='$(DATA)' scripts/release.sh '$(VERSION)' $(ARCHES)

.PHONY: run-all
run-all: ## install what is missing, build, and start the four roles as processes of their own; SETTINGS=FILE has settings, see deploy/docker
	@ADDR='$(ADDR)' DATA='$(DATA)' SETTINGS='$(SETTINGS)' scripts/run-all.sh

.PHONY: deps
deps: ## install the Debian packages that running needs
	@scripts/install.sh run

.PHONY: check
check: ## what is quick: build, generated code, vet, lint, known vulnerabilities, unit tests with -race, short fuzzing
	@scripts/check.sh

.PHONY: fuzz
fuzz: ## run every fuzz target for a minute, or for FUZZTIME
	@scripts/fuzz.sh

.PHONY: test
test: ## everything real: check's tests, end to end with gVisor, SDK, attacks; ends in tables of how long they took
	@scripts/test.sh

.PHONY: test-cluster
test-cluster: ## end to end over two machines of each role, in network namespaces, with faults: six minutes
	@DATA='$(DATA)' scripts/test-cluster.sh

.PHONY: test-upgrade
test-upgrade: ## the same with half of the machines of an earlier version, which is built from git: ten minutes (SHORT=1: six)
	@DATA='$(DATA)' scripts/test-upgrade.sh

.PHONY: chaos
chaos: ## faults at random in such a cluster, and a check of what clients saw: 15 minutes; SEED=N repeats a plan, DURATION=1h is longer
	@DATA='$(DATA)' SEED='$(SEED)' DURATION='$(DURATION)' scripts/chaos.sh

.PHONY: test-cgroup2
test-cgroup2: $(OUT)/cloud-sandbox ## the contract of engines on cgroup v2, in an emulated machine: seven minutes
	@scripts/cgroup2.sh

.PHONY: test-systemd
test-systemd: build ## boot a Debian with systemd in an emulated machine, with the packages in it: twenty minutes
	@DATA='$(DATA)' scripts/test-systemd.sh

.PHONY: test-templates
test-templates: build ## build claude, codex, desktop and code-interpreter-v1 and use them with E2B's SDKs: ten minutes, 4 GiB
	@for t in base code-interpreter-v1 claude codex desktop; do CLOUD_SANDBOX_URL= bin/cloud-sandbox template build $$t --data $(DATA) || exit; done
	@TEMPLATES_E2E=1 CLOUD_SANDBOX_E2E=$(CURDIR)/bin/cloud-sandbox CLOUD_SANDBOX_TEMPLATES=$(DATA)/templates CLOUD_SANDBOX_E2B_SDKS=$$(scripts/e2b-sdks.sh) go test -vet=off -count=1 -v -timeout 60m -run '^TestKnownTemplates$$' ./tests/e2b

.PHONY: test-ecosystem
test-ecosystem: build ## run agent frameworks and tools, as their registries have them, against the server
	@DATA='$(DATA)' scripts/test-ecosystem.sh

.PHONY: test-large
test-large: build ## pause and resume a million files, and 50,000 descriptors, and print the times: some minutes
	@LARGE_E2E=1 CLOUD_SANDBOX_E2E=$(CURDIR)/bin/cloud-sandbox CLOUD_SANDBOX_TEMPLATES=$(DATA)/templates go test -vet=off -count=1 -timeout 120m -run '^TestLarge$$' ./tests/e2e

.PHONY: bench-cluster
bench-cluster: ## measure a cluster beside the server with all roles, and write docs/benchmarks/cluster
	@DATA='$(DATA)' scripts/bench-cluster.sh

.PHONY: bench
bench: ## measure everything beside Docker and bare runsc
	@scripts/bench.sh full

.PHONY: bench-quick
bench-quick: ## the same, the main rows only, in under two minutes
	@scripts/bench.sh quick

.PHONY: test-copies
test-copies: ## copy, delete and fetch 1,000 snapshots while nodes and leaders crash, and print the times: a minute
	@scripts/test-copies.sh

.PHONY: simulate
simulate: ## run the scheduler and the session-manager over 1,000 simulated nodes and 100,000 sandboxes, and draw docs/simulation.svg: six minutes, 4 GiB
	@scripts/simulate.sh

.PHONY: docs-test
docs-test: ## run the snippets of README and docs against a fresh server
	@scripts/docs-test.sh

.PHONY: generate
generate: ## regenerate code from api/proto and api/openapi.yaml
	@tools/generate.sh

.PHONY: fmt
fmt: ## format the code
	@go tool -modfile=tools/go.mod gofumpt -w $$(git ls-files '*.go' | grep -v '^api/gen/')

.PHONY: down
down: bin/cloud-sandbox ## end everything that a stopped server left running
	@bin/cloud-sandbox down --data '$(DATA)'

.PHONY: clean
clean: ## remove what was built; the data folder stays
	@rm -rf bin internal/engine/gvisor/payload/files/*.zst .tools
