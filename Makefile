# Posthaste. The two commands that matter: make run, make test.

PREFIX  ?= /usr
DESTDIR ?=
SBINDIR ?= $(PREFIX)/sbin
DAEMONDIR ?= $(PREFIX)/lib/posthaste
SYSCONFDIR ?= /etc/posthaste
UNITDIR ?= $(PREFIX)/lib/systemd/system
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions

GO ?= go
BIN ?= bin
DIST ?= dist
# Links to posthaste, and programs that are started for each message or by each user:
# these do without the C library, which takes as long to load as they to run.
TOOLS = mailq newaliases postsuper postcat postconf postmap postalias postkick postlock postlog postmulti posttls-finger qshape
# Postfix's control program, where that has not one of its own.
CONTROL = postfix
SMALL = sendmail $(SETGID)
# Those of them that are set-gid begin in package scrub, which says why.
SETGID = postdrop postqueue
SCRUB = $(if $(filter linux/amd64 linux/arm64,$(shell $(GO) env GOOS)/$(shell $(GO) env GOARCH)),-E posthaste/internal/scrub.entry)

# The version is that of the tag, and between tags the tag's with the number of commits since
# and the commit; where neither git nor the archive knows of a tag, that of the source.
RELEASE ?= $(shell sh etc/version.sh)
STAMP = $(if $(RELEASE),-X posthaste/internal/config.release=$(RELEASE))

# Programs have no paths of the machine that built them. A test of the package does without this:
# what it builds is then what other tests have built.
TRIMPATH ?= -trimpath

.PHONY: all build run test race check figures differential man licences peers install deb deb-test tarball bench bench-compare speed poison soak crash mutants fuzz reproducible clean

all: build

build:
	$(GO) build $(TRIMPATH) -ldflags '$(LDFLAGS) $(STAMP)' -o $(BIN)/ ./cmd/posthaste ./cmd/posthaste-tables ./cmd/posthaste-metrics ./cmd/posthaste-console ./cmd/posthaste-inject ./cmd/posthaste-pg ./cmd/posthaste-events
	CGO_ENABLED=0 $(GO) build $(TRIMPATH) -ldflags '$(LDFLAGS) $(STAMP)' -o $(BIN)/ ./cmd/sendmail
	CGO_ENABLED=0 $(GO) build $(TRIMPATH) -ldflags '$(LDFLAGS) $(STAMP) $(SCRUB)' -o $(BIN)/ $(SETGID:%=./cmd/%)

# A mail server on 127.0.0.1:2525 as the present user, with everything below ./run;
# "make run DIR=/var/tmp/try PORT=2526" has another directory and port. It builds only what it
# needs: not the clients of databases and the service for metrics, which take longer to build than
# all else, nor sendmail and postqueue, which posthaste is as well. From empty caches, half of the
# work is to compile the packages of Go's own library and of other modules. What only debuggers read
# is left out, which is a seventh of it.
DIR ?= run
run:
	@echo 'Building the mail system (the first time this takes a minute or so) ...'
	@$(GO) build $(TRIMPATH) -gcflags all=-dwarf=false -ldflags '-w $(LDFLAGS) $(STAMP)' -o $(BIN)/ ./cmd/posthaste ./cmd/posthaste-console ./cmd/postdrop
	@exec $(BIN)/posthaste try -d '$(DIR)' $(if $(PORT),-p '$(PORT)')

# Everything that must hold: vet, static checks, the import law, all tests. Packages are tested
# with the race detector, but for the two kinds below and the simulation by seed, which the detector
# would make a matter of chance. Tests with foreign programs say when they are skipped.
# "make test PKG=./smtpd" is for whoever changes one package.
PKG ?= ./...
# Packages that start no goroutine, as a test in internal/arch says: the detector could find
# nothing in them, and has them take five times as long.
ALONE = ^posthaste/(etc|local/macro|qmgr/sched|qmgr/schedconf|internal/(account|adaptive|addrform|advice|arch|audit|bounceclass|cli|collate|config|course|dmarcreport|doubtful|dsn|egress|feedback|fuzzall|history|jsontext|licences|logread|mail|mailauth/dkimkey|manual|migrate|mutants|nodeshare|occupant|optout|ownsocket|pace|pack|postfixtls|prefilter|proto|queue|rate|replyshare|returnpath|rfc5322|selection|setup|smallfile|srs|srstool|statedir|table/dbfile|table/lmdbfile|testcert|testseed|token|upgrade|verify/probesender|whatif|whoami))(/|$$)
# The package whose tests take longest is begun first.
LONG = ^posthaste/internal/spool$$
# Run in both ways: most of the spool's random histories are one goroutine, and only short ones are
# run with the detector; of the simulations by seed, hundreds of seeds are run without it, and all of the console's
# pages in a browser.
AGAIN = ^posthaste/internal/(spool|simtest|nodesim|console)$$
# The end-to-end tests spend their time starting programs, for which one with the detector takes five
# times as long (.17 s of a processor, not .035 s). Those of RACED are run with it as well: in them
# everything is under way at once. "make race" runs all with it. They wait much, and so go on beside
# the others.
WHOLE = ^posthaste/internal/e2e$$
RACED = TestNothingMixed|TestReloadWhileMailComesIn|TestKillDuringDelivery|TestMetrics
# Random histories and properties begin with one seed here, so that a tree passes or fails always in the
# same way; the long runs draw their own ("make test RAPID_SEED=0 POSTHASTE_SEED=0" too).
test: export RAPID_SEED ?= 1
test: export POSTHASTE_SEED ?= 1
# At the end it repeats what failed, with the first lines of why: the rest may be far above. What "check" has vetted
# is not vetted again.
test: check
	@out=$$(mktemp) && { ( \
	  all=$$($(GO) list $(PKG)) && some() { echo "$$all" | grep -E "$$@" || :; } && \
	  alone=$$(some '$(ALONE)') && again=$$(some '$(AGAIN)') && whole=$$(some '$(WHOLE)') && others="$$(some '$(LONG)') $$(some -v '$(ALONE)|$(WHOLE)|$(LONG)')" && \
	  aside=$$(mktemp) && bad=0 && \
	  { { [ -z "$$whole" ] || { $(GO) test -vet=off -count=1 -parallel 8 -timeout 40m $$whole && $(GO) test -vet=off -race -count=1 -timeout 40m -run '^($(RACED))$$' $$whole; }; } >"$$aside" 2>&1 & } && \
	  { [ -z "$$alone" ] || $(GO) test -vet=off -p 4 -parallel 8 -timeout 40m $$alone || bad=1; } && \
	  { [ "$$others" = ' ' ] || $(GO) test -vet=off -race -p 4 -parallel 8 -timeout 40m $$others || bad=1; } && \
	  { wait $$! || bad=1; cat "$$aside"; rm "$$aside"; } && \
	  { [ -z "$$again" ] || $(GO) test -vet=off -count=1 -p 1 -timeout 40m $$again || bad=1; } && exit $$bad \
	) 2>&1; echo $$? >"$$out.status"; } | tee "$$out"; \
	./internal/e2e/peers.sh check; awk -f internal/e2e/failures.awk "$$out"; \
	status=$$(cat "$$out.status"); rm -f "$$out" "$$out.status"; exit "$${status:-1}"

# Everything with the race detector, which finds what no test asserts: an hour or more.
race:
	$(GO) test -race -p 4 -parallel 8 -timeout 3h $(PKG)

check:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "gofmt these files"; exit 1; }
	$(GO) vet $(PKG)
	$(GO) tool staticcheck $(PKG)
	@! ls .github/workflows/*.yml >/dev/null 2>&1 || $(GO) tool actionlint

# The same mail through the original Postfix and through Posthaste (needs root and
# Postfix): what differs must be in internal/differential/testdata/differences.
differential:
	$(GO) test -count=1 ./internal/differential -whole

# Manual pages, docs/parameters.md and completions, from what the program declares.
man:
	$(GO) run ./internal/manual/gen

# docs/licences.md, the texts of all licences and the bill of materials, from go.mod and the
# modules: to be run when a dependency changes, as a test says.
licences:
	$(GO) run ./internal/licences/gen

# The foreign programs that tests use, from Debian's packages and npm's registry (needs root).
peers:
	./internal/e2e/peers.sh

# Every benchmark, for a quiet machine; bench-compare sets the outcome beside an earlier
# one: that of the documents, or BASE=file of another machine or commit. Those beside
# Postfix need root and its package.
BENCH ?= .
COUNT ?= 1
BASE ?= docs/bench.txt
bench:
	$(GO) test -p 1 -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 90m ./... | tee bench.txt

bench-compare: bench
	$(GO) tool benchstat $(BASE) bench.txt

# The speed of the present tree beside that of the last release, or of BASE=commit, on the same mail in turn;
# it fails when something is slower by more than 3 %. ROUNDS=30 tells finer differences, WORKLOADS=relay,small
# has but those. It needs a quiet machine: what it could not tell, it says.
ROUNDS ?= 12
speed:
	$(GO) run ./internal/speed -rounds $(ROUNDS) $(if $(filter command environment,$(firstword $(origin BASE))),-base $(BASE)) $(if $(WORKLOADS),-workloads $(WORKLOADS))

# What is counted of the code; the bounds are in docs/internals.md.
figures:
	@$(GO) run ./internal/arch/figures

# Every fuzzer of the tree: TIME is shared out between them, and is a minute each if it is not said.
# How often each was executed is printed. make fuzz TIME=1h KEEP=-keep also puts the shortest inputs into the
# tree that between them execute all that was executed; ONLY=Address has but fuzzers of such names run.
fuzz:
	$(GO) run ./internal/fuzzall -time $(if $(filter command environment,$(firstword $(origin TIME))),$(TIME),80m) $(KEEP) $(if $(ONLY),-run '$(ONLY)')

# Two builds of the commit, in two places, with nothing kept from one for the other: the
# programs must be equal, octet for octet.
reproducible:
	@etc/reproducible.sh

# The tests of all packages that use memory again, built so that what was given back is
# overwritten (internal/reuse says how): whoever kept it reads nonsense, and fails.
poison:
	$(GO) test -tags poison -p 2 -timeout 20m ./internal/reuse $$($(GO) list -f '{{range .Imports}}{{if eq . "posthaste/internal/reuse"}}{{$$.ImportPath}}{{end}}{{end}}' ./...)

# Many more random histories and the whole sizes of what make test runs in part, poison, and
# of the simulations of the whole mail system SEEDS, and of that of nodes NODE_SEEDS, from FIRST on.
# Three real nodes with Patroni have faults for as long as STORM says. A mail system has a whole day of hostile clients.
SEEDS ?= 20000
NODE_SEEDS ?= 100000
FIRST ?= 1000
STORM ?= 1h
soak: poison
	$(GO) test -timeout 0 ./qmgr/sched -long
	$(GO) test -timeout 0 ./qmgr/sched/simulate -run TestSending -sending.seeds=1000
	RAPID_CHECKS=$(CHECKS) $(GO) test -count=1 -p 2 -timeout 0 $$($(GO) list -f '{{range .TestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}}' ./...)
	$(GO) test -timeout 0 ./internal/e2e -mix.whole -skip TestReloadHoldsNobodyUp
	$(GO) test -timeout 0 ./internal/e2e -run TestReloadHoldsNobodyUp -reload.pause
	$(GO) test -timeout 0 ./internal/simtest -v -sim.first=$(FIRST) -sim.n=$(SEEDS)
	$(GO) test -timeout 0 ./internal/simtest -run 'TestHostileDay$$' -v -day.hours=24
	$(GO) test -timeout 0 ./internal/nodesim -run Seeds -v -sim.first=$(FIRST) -sim.n=$(NODE_SEEDS)
	$(GO) test -timeout 0 ./internal/e2e -run 'TestClusterStorm$$' -v -cluster.storm=$(STORM) -cluster.storm.seed=$(FIRST)

# Power cuts on the spool, and all other failures that its tests know: each kind of
# history for as long as told, many at a time, and then the planted faults, which all
# must be found: make crash TIME=1h. It prints how many there were of each.
TIME ?= 10m
crash:
	$(GO) test ./internal/spool -run 'Crash|Rot|FullDisk|PowerCut' -timeout 0 -parallel 64 -v -crash.time=$(TIME) | \
	  awk '/^ *--- |first seed|histories|crashes|images|damaged disks|power cuts|posted|SKIPPED|seed [0-9]+:|FAIL|^ok/ { print; fflush() } /FAIL/ { bad = 1 } END { exit bad }'
	$(GO) test ./internal/spool -run Planted -count=1 -v

# Faults are planted one at a time, and the tests of their packages must notice: those of
# internal/mutants/seeds.txt, and a sample of N (0: all) of what rules make in the packages
# that matter, or in PKG (make mutants PKG=qmgr/sched N=100). SEED repeats a sample, TIME bounds it.
N ?= 40
SEED ?= 0
mutants:
	$(GO) run ./internal/mutants/plant -n $(N) -seed $(SEED) $(if $(filter command environment,$(firstword $(origin TIME))),-time $(TIME)) $(if $(filter-out ./...,$(PKG)),-pkg $(PKG))

# Owners and modes are put right by "posthaste set-permissions", which needs root
# and the users; a package does it when it is installed.
install: build
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(DAEMONDIR) $(DESTDIR)$(SYSCONFDIR) $(DESTDIR)$(UNITDIR)
	install -m 755 $(BIN)/posthaste $(DESTDIR)$(SBINDIR)/posthaste
	for p in $(SMALL); do rm -f $(DESTDIR)$(SBINDIR)/$$p && install -m 755 $(BIN)/$$p $(DESTDIR)$(SBINDIR)/$$p || exit 1; done
	install -m 755 $(BIN)/posthaste-tables $(DESTDIR)$(DAEMONDIR)/posthaste-tables
	install -m 755 $(BIN)/posthaste-metrics $(DESTDIR)$(DAEMONDIR)/posthaste-metrics
	install -m 755 $(BIN)/posthaste-console $(DESTDIR)$(DAEMONDIR)/posthaste-console
	install -m 755 $(BIN)/posthaste-inject $(DESTDIR)$(DAEMONDIR)/posthaste-inject
	install -m 755 $(BIN)/posthaste-pg $(DESTDIR)$(DAEMONDIR)/posthaste-pg
	install -m 755 $(BIN)/posthaste-events $(DESTDIR)$(DAEMONDIR)/posthaste-events
	for t in $(TOOLS); do ln -sf posthaste $(DESTDIR)$(SBINDIR)/$$t; done
	@if [ -e $(DESTDIR)$(SBINDIR)/$(CONTROL) ] && [ ! -L $(DESTDIR)$(SBINDIR)/$(CONTROL) ]; then \
	  echo "$(DESTDIR)$(SBINDIR)/$(CONTROL) is Postfix's own and stays; once Postfix is gone: ln -s posthaste $(SBINDIR)/$(CONTROL)"; \
	  else ln -sf posthaste $(DESTDIR)$(SBINDIR)/$(CONTROL); fi
	for f in main.cf master.cf; do \
	  test -e $(DESTDIR)$(SYSCONFDIR)/$$f || install -m 644 etc/$$f $(DESTDIR)$(SYSCONFDIR)/$$f; done
	for u in posthaste posthaste@; do \
	  sed 's|=/usr/sbin/|=$(SBINDIR)/|' etc/systemd/$$u.service >$(DESTDIR)$(UNITDIR)/$$u.service && \
	  chmod 644 $(DESTDIR)$(UNITDIR)/$$u.service || exit 1; done
	for s in 1 5 8; do install -d $(DESTDIR)$(MANDIR)/man$$s && \
	  install -m 644 docs/man/*.$$s $(DESTDIR)$(MANDIR)/man$$s || exit 1; done
	install -d $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR)
	install -m 644 etc/completion/posthaste.bash $(DESTDIR)$(BASHDIR)/posthaste
	for t in $(TOOLS) $(SMALL) $(CONTROL); do ln -sf posthaste $(DESTDIR)$(BASHDIR)/$$t; done
	install -m 644 etc/completion/_posthaste $(DESTDIR)$(ZSHDIR)/_posthaste
	install -d -m 755 $(DESTDIR)/var/spool/posthaste $(DESTDIR)/var/lib/posthaste
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then $(SBINDIR)/posthaste set-permissions; else \
	  echo "now, on the machine it is for, as root: posthaste set-permissions"; fi

# A Debian package, in $(DIST).
deb:
	@etc/debian/build.sh $(DIST)

# The package in a Debian root that debootstrap makes: installed, used, upgraded,
# removed; and a Postfix that it replaces; with systemd and without. Needs root and a Debian mirror.
deb-test:
	etc/debian/test.sh

# What "make install" installs, to be unpacked on another machine.
tarball:
	@etc/tarball.sh $(DIST)

clean:
	rm -rf bin dist
