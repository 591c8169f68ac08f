# Run make help for the targets.
SHELL   := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X github.com/scopefs/scopefs/internal/version.Version=$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build install deb release reproduce demo check tidy lint vuln ready ready-all test test-all test-race test-serial test-deb test-kernels test-nfs test-kubernetes test-bubblewraps test-containers bench bench-work bench-history bench-mcp bench-stores bench-context bench-egress bench-scale bench-floods bench-record bench-restart bench-start bench-fleet bench-console charts compare-selftest pictures fuzz fuzz-short clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The packages of all modules: the library and the program, exports, the drivers of stores, the console, the plugin for Kubernetes, the tests of the whole.
PACKAGES := ./... ./cmd/scopefs-export/... ./cmd/scopefs-stores/... ./cmd/scopefs-console/... ./cmd/scopefs-csi/... ./integration/...

# The programs are stripped: to compile without their debug information takes a fifth less. The same flags everywhere, and no cgo, so that nothing is compiled twice.
# What is released is built without, as anybody would.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath -gcflags=all=-dwarf=false)
export CGO_ENABLED := 0
deb release reproduce: export GOFLAGS := $(shell go env GOFLAGS)

# The programs are the directories of cmd: those of modules of their own, and those of the main module, which need each other.
OTHERS  := $(patsubst cmd/%/go.mod,%,$(wildcard cmd/*/go.mod))
CORE    := $(filter-out $(OTHERS),$(notdir $(wildcard cmd/*)))
PROGRAMS := bin
build: ## build static programs in bin, scopefs and those beside it, and bin/pages, man pages and completions
	@$(call BUILD,$(CORE) $(OTHERS))
	@rm -rf bin/pages
	@env -u SCOPEFS_BASE -u SCOPEFS_STATE -u SCOPEFS_RUN -u SCOPEFS_AGENT GOARCH= CGO_ENABLED=0 go run -ldflags '$(LDFLAGS)' ./internal/pages bin/pages

PREFIX  := /usr/local
DESTDIR :=
install: ## install the programs, man pages, completions, units and drop-ins (PREFIX=/usr/local, DESTDIR=)
	@packaging/install $(PROGRAMS)/scopefs '$(DESTDIR)' '$(PREFIX)'

# nfpm packs the packages. Releases since v2.46 need modules that the module proxy does not have.
NFPMVERSION := v2.43.4
NFPM := bin/nfpm-$(NFPMVERSION)/nfpm

$(NFPM):
	GOBIN=$(CURDIR)/bin/nfpm.$$$$ go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPMVERSION) && mkdir -p $(@D) && mv bin/nfpm.$$$$/nfpm $@ && rmdir bin/nfpm.$$$$

ARCHES  := amd64 arm64
RELEASE := bin/release
deb: $(NFPM) ## build the programs and Debian packages of a release in bin/release (ARCHES="amd64 arm64")
	VERSION='$(VERSION)' packaging/release $(NFPM) $(RELEASE) $(ARCHES)

SBOMVERSION := v1.10.0
SBOM := bin/cyclonedx-gomod-$(SBOMVERSION)/cyclonedx-gomod

$(SBOM):
	GOBIN=$(CURDIR)/bin/sbom.$$$$ go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(SBOMVERSION) && mkdir -p $(@D) && mv bin/sbom.$$$$/cyclonedx-gomod $@ && rmdir bin/sbom.$$$$

release: deb $(SBOM) ## deb, with bills of materials, signatures and an apt repository (RELEASE_KEY=minisign's file, APT_KEY=GnuPG's id)
	@.ci/need minisign:minisign reprepro:reprepro gpg:gnupg
	VERSION='$(VERSION)' packaging/publish $(SBOM) $(RELEASE)

reproduce: $(NFPM) ## build a release twice, in two directories without a cache, and compare (takes minutes)
	VERSION='$(VERSION)' packaging/reproduce $(NFPM) $(ARCHES)

# BUILD builds programs of bin: BUILD,names. By the tag, which no file has, scopefs doctor finds programs of another build.
BUILDNAME := $(shell printf %s '$(VERSION)' | tr -c 'A-Za-z0-9._' _)
BUILD = packaging/build $(PROGRAMS) -tags scopefs_$(BUILDNAME) -ldflags '-s -w' -ldflags './cmd/scopefs=$(LDFLAGS)' -ldflags './cmd/scopefsd=$(LDFLAGS)' $(addprefix ./cmd/,$(1))

# The drivers of stores take twice as long to build as the rest, and the console a quarter: the demo shows them if make build has built
# them, and the console where a browser can take its pictures.
demo: ## run two agents with real work and known escapes (installs bubblewrap)
	@.ci/need bwrap:bubblewrap git:git flock:util-linux & $(call BUILD,$(CORE) $(if $(shell command -v chromium),scopefs-console)) && wait $$!
	@integration/demo/demo.sh

# The tests of packages need neither root nor /dev/fuse; an ordinary user who may open it has his views in a user namespace.
check: ## format, vet and the fast tests (no root, no network)
	@set -e; echo "gofmt -l"; test -z "$$(gofmt -l $$(go list -f '{{.Dir}}' $(PACKAGES)) | tee >(cat >&2))"; \
	echo "go vet ./..."; go vet $(PACKAGES); \
	echo "go test -short ./..."; go test -short -vet=off $$(go list $(PACKAGES) | grep -v /integration); \
	echo "go test ./integration/house"; go test -count=1 -short -vet=off ./integration/house; \
	echo "go test ./integration/cli, a user's own views"; go test -short -vet=off -run '$(CHECKTESTS)' ./integration/cli

# What an ordinary user does without a daemon.
CHECKTESTS := ^Test(Readme|Script)

LINTVERSION := v2.15.0
LINT := bin/golangci-lint-$(LINTVERSION)

$(LINT):
	GOBIN=$(CURDIR)/bin/lint.$$$$ go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINTVERSION) && mkdir -p $(@D) && mv bin/lint.$$$$/golangci-lint $@ && rmdir bin/lint.$$$$

# The S3 server of tests.
S3VERSION := v1.8.0
S3SERVER := bin/versitygw-$(S3VERSION)/versitygw

$(S3SERVER):
	GOBIN=$(CURDIR)/bin/s3.$$$$ go install github.com/versity/versitygw/cmd/versitygw@$(S3VERSION) && mkdir -p $(@D) && mv bin/s3.$$$$/versitygw $@ && rmdir bin/s3.$$$$

tidy: ## check that go.mod and go.sum of each module have what it imports and nothing else, and that go.work.sum is complete
	@set -e; for module in . cmd/scopefs-export cmd/scopefs-stores cmd/scopefs-console cmd/scopefs-csi integration integration/kubernetes/tools; do (cd $$module; GOWORK=off go mod tidy -diff); done; \
	sum=$$(mktemp); trap 'rm -f $$sum' EXIT; cp go.work.sum $$sum; go list -m all >/dev/null; go list -deps -test $(PACKAGES) >/dev/null; diff $$sum go.work.sum

lint: $(LINT) tidy ## golangci-lint, as .golangci.yml says (builds it once)
	$(LINT) run --allow-parallel-runners $(PACKAGES)

# The database's module has its records; the server that has the database, vuln.go.dev, is not needed. To renew:
# go list -m golang.org/x/vulndb@master
VULNVERSION := v1.9.0
VULN := bin/govulncheck-$(VULNVERSION)/govulncheck
VULNDBVERSION := v0.0.0-20261105234957-e22db6528018
VULNDB := bin/vulndb-$(VULNDBVERSION)

$(VULN):
	GOBIN=$(CURDIR)/bin/vuln.$$$$ go install golang.org/x/vuln/cmd/govulncheck@$(VULNVERSION) && mkdir -p $(@D) && mv bin/vuln.$$$$/govulncheck $@ && rmdir bin/vuln.$$$$

$(VULNDB):
	GOBIN=$(CURDIR)/bin/indexdb.$$$$ go install golang.org/x/vulndb/cmd/indexdb@$(VULNDBVERSION) && \
	  bin/indexdb.$$$$/indexdb -vulns "$$(GOWORK=off go mod download -json golang.org/x/vulndb@$(VULNDBVERSION) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/data/osv" -out bin/indexdb.$$$$/db && \
	  mv bin/indexdb.$$$$/db $@ && rm -r bin/indexdb.$$$$

vuln: $(VULN) $(VULNDB) ## compare what is shipped with the Go vulnerability database (builds it once, takes minutes)
	.ci/vuln $(VULN) $(VULNDB) ./... ./cmd/scopefs-export/... ./cmd/scopefs-stores/... ./cmd/scopefs-console/... ./cmd/scopefs-csi/...

# The programs under test, built once for all folders of integration.
test test-race test-serial: export SCOPEFS_TEST_PROGRAM = $(CURDIR)/bin/test/scopefs
test test-race test-serial: export REQUIRE_FUSE = 1
# Targets of test-all run the tests that need.All leaves to them.
test-race test-serial: export SCOPEFS_TEST_ALL = 1
# See need.Once.
test-serial: export SCOPEFS_TEST_AGAIN = 1
# Without the shims of pyenv and its like: one takes a fifth of a second of processor time for each start of python3, which .ci/need installs.
SPACE := $(subst ,, )
test test-race test-serial: export PATH := $(CURDIR)/$(dir $(S3SERVER)):$(CURDIR)/$(dir $(NFPM)):$(CURDIR)/$(dir $(SBOM)):$(subst $(SPACE),:,$(filter-out %/shims,$(subst :, ,$(PATH))))

TESTBUILD = packaging/build bin/test -ldflags '-s -w' ./integration/progress $(addprefix ./cmd/,$(CORE) $(OTHERS))

# A test with t.Parallel mostly waits, so more of them run side by side than there are processors.
PARALLEL := -p=4 -parallel=8

# RUN prints what go test reports, as it happens, and ends a package that hangs, with all goroutines: RUN,minutes,flags.
RUN = -json -exec '$(CURDIR)/bin/test/progress -limit $(1)m$(2)' | bin/test/progress

# What make test needs.
NEEDS := bwrap:bubblewrap git:git curl:curl wget:wget setfacl:acl setfattr:attr patch:patch mkfs.ext4:e2fsprogs losetup:mount \
	/lib/systemd/systemd:systemd systemd-nspawn:systemd-container setcap:libcap2-bin ip:iproute2 pgrep:procps python3:python3 zstd:zstd \
	strace:strace redis-server:redis-server /usr/lib/postgresql/15/bin/postgres:postgresql-15 dbus-daemon:dbus-daemon bindfs:bindfs /usr/share/zoneinfo/UTC:tzdata \
	/usr/sbin/sshd:openssh-server ssh-agent:openssh-client
# And test-all. The race detector needs a C compiler.
ALLNEEDS := gcc:gcc /usr/include/stdio.h:libc6-dev sshfs:sshfs mfsmount:moosefs-client /usr/sbin/mfsmaster:moosefs-master \
	/usr/sbin/mfschunkserver:moosefs-chunkserver /usr/lib/python3/dist-packages/pip:python3-pip /usr/lib/python3/dist-packages/dotenv:python3-dotenv \
	influxd:influxdb pre-commit:pre-commit direnv:direnv minisign:minisign reprepro:reprepro gpg:gnupg chromium:chromium

ready:
	@began=$$SECONDS; .ci/need $(NEEDS); echo "install: $$((SECONDS - began)) s"

ready-all: ready $(S3SERVER) $(NFPM) $(SBOM)
	@.ci/need $(ALLNEEDS)
	@.ci/clients

# The longest packages come first. Without symbols the linker takes a quarter less of each of 159 programs.
test: ## the promises, each once, on real mounts (as root; installs what is missing)
	@set -e -o pipefail; before=$$(mktemp); trap 'rm -f $$before' EXIT; .ci/leftovers >$$before; \
	began=$$SECONDS; { .ci/need $(NEEDS); echo "install: $$((SECONDS - began)) s"; } & ready=$$!; go list -deps -test $(PACKAGES) >/dev/null & modules=$$!; \
	$(TESTBUILD); wait $$ready; wait $$modules; echo "build: $$((SECONDS - began)) s"; \
	began=$$SECONDS; go test -count=1 -vet=off -ldflags '-s -w' -timeout 80m $(PARALLEL) ./integration/cli ./integration/daemon ./integration/tools ./tools/sandbox ./fs/branch ./integration/... $(PACKAGES) $(call RUN,10, -memory); echo "test: $$((SECONDS - began)) s"; \
	.ci/leftovers $$before; echo "nothing left behind"

# The exhaustive run: its parts one after the other. Each is a target of its own.
ALL := test-race test-serial test-deb test-bubblewraps test-containers test-kernels test-nfs test-kubernetes vuln fuzz
test-all: ## everything: races, one processor, no caches, browsers, programs of others, crashes, kernels, containers, clusters (as root; hours)
	@set -e; for part in $(ALL); do echo "=== $$part"; $(MAKE) --no-print-directory $$part; done

test-race: ready-all ## all tests, with the race detector (as root)
	@set -e -o pipefail; before=$$(mktemp); trap 'rm -f $$before' EXIT; .ci/leftovers >$$before; \
	$(TESTBUILD); \
	CGO_ENABLED=1 go test -race -count=1 -vet=off -timeout 40m -p=2 -parallel=4 $(PACKAGES) $(call RUN,35); \
	.ci/leftovers $$before; echo "nothing left behind"

# Tests whose result may depend on the kernel's caches.
VIEWTESTS := /integration/(attack|view)$$
# Tests that wait for a browser most of the time, or only read the source.
ONCE := /integration/(console|house)$$

test-serial: ready-all ## all tests but the browser's again with GOMAXPROCS=1, and those of views without the kernel's caches (as root)
	@set -e -o pipefail; before=$$(mktemp); trap 'rm -f $$before' EXIT; .ci/leftovers >$$before; \
	$(TESTBUILD); \
	GOMAXPROCS=1 go test -count=1 -vet=off -timeout 40m -p=2 -parallel=4 $$(go list $(PACKAGES) | grep -vE '$(VIEWTESTS)|$(ONCE)') $(call RUN,35); \
	GOMAXPROCS=1 SCOPEFS_TEST_CACHE=none go test -count=1 -vet=off -timeout 40m -p=2 -parallel=4 $$(go list $(PACKAGES) | grep -E '$(VIEWTESTS)') $(call RUN,35); \
	.ci/leftovers $$before; echo "nothing left behind"

KERNELS := bin/kernels
# For guests. User-Mode Linux is built.
GUESTS := busybox:busybox-static cpio:cpio mkfs.ext4:e2fsprogs bwrap:bubblewrap git:git setfacl:acl setfattr:attr patch:patch setcap:libcap2-bin python3:python3 ip:iproute2 /usr/sbin/rpc.nfsd:nfs-kernel-server gcc:gcc /usr/include/stdio.h:libc6-dev flex:flex bison:bison bc:bc xz:xz-utils
test-kernels: ## run scopefs on Linux 5.15, 6.1, 6.8, 6.12 and Debian's newest in QEMU, and on the newest as User-Mode Linux, with control groups v2 (as root)
	@.ci/need $(GUESTS) qemu-system-x86_64:qemu-system-x86 depmod:kmod zstd:zstd
	@integration/kernels/fetch $(KERNELS)
	@integration/kernels/user-mode $(KERNELS)
	SCOPEFS_TEST_KERNELS=$(CURDIR)/$(KERNELS) go test -count=1 -v -timeout 12h -run '^TestKernels$$' ./integration/kernels

test-nfs: ## test two hosts on the NFS server of User-Mode Linux (as root; builds that kernel once, which takes minutes)
	@.ci/need $(GUESTS)
	@integration/kernels/user-mode $(KERNELS)
	SCOPEFS_TEST_KERNELS=$(CURDIR)/$(KERNELS) go test -count=1 -v -timeout 2h -run '^TestNFS$$' ./integration/kernels

# Kubernetes' programs; integration/kubernetes/tools/go.mod has the version. They are built once, which takes half an hour or more on two cores.
KUBERNETES := bin/kubernetes-$(shell sed -n 's,^\tk8s.io/kubernetes \(v[0-9.]*\).*,\1,p' integration/kubernetes/tools/go.mod)

$(KUBERNETES)/kubelet:
	mkdir -p bin/kubernetes.$$$$ && cd integration/kubernetes/tools && GOWORK=off nice go build -trimpath -ldflags '-s -w' -o $(CURDIR)/bin/kubernetes.$$$$/ tool && \
	  mv $(CURDIR)/bin/kubernetes.$$$$ $(CURDIR)/$(KUBERNETES)

test-kubernetes: $(KUBERNETES)/kubelet ## run packaging/kubernetes on a node with the real API server, kubelet and containerd (as root; builds Kubernetes once)
	@.ci/need containerd:containerd runc:runc /usr/lib/cni/bridge:containernetworking-plugins busybox:busybox-static ip:iproute2 iptables:iptables bwrap:bubblewrap
	@set -e; before=$$(mktemp); trap 'rm -f $$before' EXIT; .ci/leftovers >$$before; \
	SCOPEFS_TEST_KUBERNETES=1 SCOPEFS_TEST_KUBERNETES_PROGRAMS=$(CURDIR)/$(KUBERNETES) REQUIRE_FUSE=1 go test -count=1 -v -timeout 1h ./integration/kubernetes; \
	.ci/leftovers $$before; echo "nothing left behind"

# A fresh Debian, and what the package depends on to install.
DEBIAN := bin/debian
test-deb: GOARCH := $(shell go env GOARCH)

$(DEBIAN)/root:
	@.ci/need mmdebstrap:mmdebstrap
	rm -rf --one-file-system $@.part
	@mkdir -p $(@D) && echo 'module debian // not of scopefs: go vet ./... leaves it out' >$(@D)/go.mod
	mmdebstrap --quiet --variant=minbase --include=systemd-sysv,dbus --skip=cleanup/apt/lists,cleanup/apt/cache \
	  --customize-hook='chroot "$$1" apt-get -qq install -y --no-install-recommends --download-only bubblewrap' bookworm $@.part && mv $@.part $@

test-deb: $(DEBIAN)/root ## build the Debian package, and install, use and remove it on a fresh Debian with systemd in a container (as root)
	@.ci/need systemd-nspawn:systemd-container
	rm -rf $(DEBIAN)/release && $(MAKE) --no-print-directory deb RELEASE=$(DEBIAN)/release ARCHES=$(GOARCH)
	SCOPEFS_TEST_DEB=1 SCOPEFS_TEST_PROGRAM=$(CURDIR)/$(DEBIAN)/release/scopefs-linux-$(GOARCH) REQUIRE_FUSE=1 go test -count=1 -v -run '^TestDebBoots$$' ./integration/daemon

BUBBLEWRAPS := bin/bubblewraps
test-bubblewraps: build ## run the sandbox's tests, selftest and the demo with the bubblewrap of Debian 13 and unstable, Ubuntu 24.04 and 25.10 (as root)
	@.ci/need bwrap:bubblewrap patchelf:patchelf
	.ci/bubblewraps $(BUBBLEWRAPS)
	@set -e -o pipefail; for at in $(CURDIR)/$(BUBBLEWRAPS)/*/bwrap; do export PATH="$${at%/*}:$$PATH"; echo "=== $$at: $$(bwrap --version)"; \
	  case $$at in */none-*) { bin/scopefs doctor || true; } | grep 'missing .* bubblewrap .* install bubblewrap 0.11'; continue;; esac; \
	  REQUIRE_FUSE=1 go test -count=1 -timeout 30m ./tools/sandbox; bin/scopefs selftest | tail -n 1; integration/demo/demo.sh; done

test-containers: build ## run doctor and selftest in containers of podman, of root and of an ordinary user, and of docker (as root)
	@.ci/need podman:podman runc:runc mmdebstrap:mmdebstrap newuidmap:uidmap setpriv:util-linux useradd:passwd dockerd:docker.io /usr/share/containers/seccomp.json:golang-github-containers-common
	.ci/containers bin/containers

test-gvisor: ## run pods' volumes in gVisor, whose runsc is in PATH (as root)
	REQUIRE_FUSE=1 SCOPEFS_TEST_GVISOR=1 go test -count=1 -run '^TestGVisor' ./integration/csi

bench: ## the Go benchmarks, then a view beside the directory itself, bindfs, go-fuse's loopback and libfuse's passthrough_hp (as root)
	@.ci/need bwrap:bubblewrap
	go test -run '^$$' -bench . -benchmem $$(go list $(PACKAGES) | grep -v /integration)
	integration/bench/run.sh

ARGS ?=
bench-work: ## clones, builds, npm, tar, SQLite and watching in a view, natively and in the same layers (as root; ARGS=-nopeers, -cold, -smoke, "-rounds N")
	@.ci/need git:git npm:npm sqlite3:sqlite3
	integration/bench/work.sh $(ARGS)

bench-history: ## the same work in a view that keeps changes, beside one that does not (as root; SCOPEFS_BENCH_DIR=a disk, ARGS="-rounds N", -smoke)
	integration/bench/work.sh -history $(ARGS)

bench-mcp: ## calls of tools over MCP, beside server-filesystem's (as root; ARGS="-count N")
	integration/bench/mcp.sh $(ARGS)

bench-stores: export PATH := $(CURDIR)/$(dir $(S3SERVER)):$(PATH)
bench-stores: $(S3SERVER) ## calls of each store through the door, beside the same library called directly (as root; ARGS="-count N", -smoke)
	@.ci/need redis-server:redis-server influxd:influxdb
	integration/bench/stores.sh $(ARGS)

bench-context: ## calls with a context of 1 MiB, and reads of /context (as root; ARGS="-count N", -smoke)
	integration/bench/context.sh $(ARGS)

bench-egress: ## requests, downloads and idle tunnels through an agent's network, beside a direct connection, tinyproxy and sandbox-runtime (as root; ARGS="-count N", -smoke)
	@.ci/need bwrap:bubblewrap tinyproxy:tinyproxy socat:socat rg:ripgrep
	integration/bench/egress.sh $(ARGS)

bench-scale: ## 1000 agents, a million files, 200 views, 64 threads, 1000 rules (as root; ARGS="-only PART", -smoke)
	integration/bench/scale.sh $(ARGS)

bench-floods: ## the effect of one agent's floods on another agent's calls (as root)
	@.ci/need bwrap:bubblewrap
	go test -run '^$$' -bench 'Floods$$' -benchtime 1x -timeout 30m ./integration/daemon

bench-record: ## views that record denials, writes, opens and all (as root; ARGS="-rounds N", SCOPEFS_BENCH_BEFORE=another build)
	integration/bench/record.sh $(ARGS)

bench-restart: ## what programs in views notice of a daemon's SIGTERM, SIGKILL and upgrade (as root; ARGS="-rounds N", "-agents N", "-busy N", -smoke)
	integration/bench/restart.sh $(ARGS)

bench-start: ## starts of each program, of run and of call, beside an empty Go program and bubblewrap (as root; ARGS="-rounds N", SCOPEFS_BENCH_BEFORE=a directory of another build)
	@.ci/need bwrap:bubblewrap
	integration/bench/start.sh $(ARGS)

bench-fleet: ## a fleet of nodes on one NATS server: lag of events, approvals, catching up, bytes, memory (as root; ARGS="-nodes N", "-agents N", "-rate N", -smoke)
	integration/bench/fleet.sh $(ARGS)

bench-console: ## pages of the console with 1,000 agents and 10,000 events, and what ten viewers cost (as root)
	@.ci/need bwrap:bubblewrap chromium:chromium
	go test -run '^$$' -bench 'Console$$' -benchtime 1x -timeout 30m ./integration/console

pictures: ## take README's pictures of the console, from a test (as root)
	@.ci/need bwrap:bubblewrap chromium:chromium
	SCOPEFS_TEST_SHOTS=$(CURDIR)/docs go test -count=1 -run 'TestPictures$$' ./integration/console

charts: ## draw the charts of docs/performance.md from its tables
	go run ./integration/bench charts docs/performance.md

compare-selftest: ## the attempts of scopefs selftest against scopefs, bubblewrap, sandbox-runtime, bindfs and go-fuse's loopback (as root, takes half an hour)
	@integration/cli/selftest.sh $(ARGS)

# Counts, unlike times, do not depend on how busy the machine is.
FUZZCOUNT ?= 2000x
FUZZTIME  ?= 10s
fuzz-short: FUZZTIME = $(FUZZCOUNT)
FUZZ = set -e; grep -rl --include='*_test.go' '^func Fuzz' audit cmd fs internal scope tools | while read -r file; do \
	  for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
	    echo "$$file: $$name"; go test -run '^$$' -vet=off -parallel=2 -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x ./$$(dirname $$file); \
	  done; done

fuzz-short: ## fuzz each target for FUZZCOUNT (2000x) inputs
	@$(FUZZ)

fuzz: ## fuzz each target for FUZZTIME (10s), then run the models of layers and the history with many seeds (as root, takes hours)
	@$(FUZZ)
	REQUIRE_FUSE=1 SCOPEFS_TEST_BRANCH_SEEDS=10000 SCOPEFS_TEST_BRANCH_KILLS=1000 go test -count=1 -timeout 6h -run '^Test(Model|ModelHost|ModelUndo|ModelUndoOfSessions|Kill|MergeKill)$$' ./fs/branch
	SCOPEFS_TEST_HISTORY_SEEDS=10000 SCOPEFS_TEST_HISTORY_KILLS=1000 SCOPEFS_TEST_POINTS=3 go test -count=1 -timeout 2h \
	  -run '^Test(Model|ModelOthers|UndoKilled|UndoKilledModel|KilledSteps)$$' ./fs/history ./fs/plan
	REQUIRE_FUSE=1 SCOPEFS_TEST_HISTORY_SEEDS=500 go test -count=1 -timeout 2h -run '^Test(Hold)?Model$$' ./integration/history
	REQUIRE_FUSE=1 SCOPEFS_TEST_HISTORY_CRASHES=300 SCOPEFS_TEST_HISTORY_CUTS=50 go test -count=1 -timeout 1h -run '^Test(Crash|PowerLoss|HoldPowerLoss)$$' ./integration/history

clean: ## remove build results and the demo's directory
	rm -rf --one-file-system bin demo
