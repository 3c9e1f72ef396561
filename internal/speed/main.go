// Speed compares the speed of the present tree with that of an earlier commit, and fails when
// something has become slower. "make speed" runs it.
//
//	speed [-base commit] [-rounds number] [-workloads name,...] [-loss percent] [-dir directory] [-keep] [-wait]
//	speed -sending [-workloads settings,...] [-shaping file,...] [-rounds number] [-dir directory] [-keep]
//	speed -serial [-workloads name,...] [-dir directory] [-keep]
//	speed -beside [-workloads name,...] [-rounds number] [-messages number] [-busy number] [-bin directory] [-dir directory] [-keep]
//	speed -busy number [-dir directory] command argument...
//
// Both are built, and both mail systems are started from the same main.cf and master.cf, each with
// a queue of its own on the same disk. They get the same mail in turn: the one, the other; the other,
// the one. A machine's speed drifts within seconds, and in neighbours it drifts for both. What is
// compared is each pair, and what is printed is the mean ratio with the interval that has it with 95 %
// confidence.
//
//	workload  figure                      before    now   ratio   95 %
//	relay     messages a second            9,950  9,890   0.994   0.981 to 1.007
//	relay     processor time, µs/message     118    119   1.006   0.999 to 1.013
//
// The load and the next hop are goroutines of this program. They need some of the same
// processors, and as much of them for both. Mail goes over loopback, and nowhere else.
//
// # The base
//
// Without -base it is the last release, which is the tag nearest to the commit. Its programs are
// built from a work tree of its own that is removed afterwards.
//
// # Delivery before acknowledging
//
// With -wait nothing is compared with a base. The present tree is built twice, as it is and with the tag
// slowsync, with which each sync takes 10 ms longer than the disk takes, and each runs twice, with and without
// smtpd_delivery_wait = 5s. For each workload (relay and relay100, unless -workloads says others) it prints the medians of
// the rounds: messages a second, and syncs of the queue's log per message, as the metrics count them.
//
// # A sender's settings
//
// With -sending the present tree relays with nothing configured, with all of docs/sending.md for one tenant, and with
// 1,000 tenants, 50 sources and shaping files, in turn. It prints what each comes to beside the first, the memory of
// its processes, and for how long a reload of it has nothing delivered. -shaping names KumoMTA's files, the base first;
// without it some are made up. The last settings have a file as sink of each event besides. -workloads chooses the
// settings by how their names begin. What each service takes of the processors stands above.
//
// # More processors
//
// With -serial the present tree relays (relay, relay100 and domains, unless -workloads says others) while each service
// profiles itself. Printed is what a message takes of the processors in each service, and what of that the goroutines
// take of which there is one; how often others have waited for a lock, by who held it; and what 2, 4, 16 and 64
// processors would do, by calculation. For that the way of a message through the services is simulated with these
// figures. The first line of it is for this machine with what others have left of it, beside what was measured.
//
// # Beside Postfix
//
// With -beside the present tree and the Postfix that is installed have the same mail in turn, from the same main.cf and
// master.cf as far as both know what is there. Printed is a table of medians, with the mean ratio of the pairs: what of
// Postfix's figure Posthaste's is. Processor time is that of all processes of the mail system and of its helpers (a mail
// filter, a database), until they have come to rest. Root is needed.
//
//	workload        what it shows
//	relay           and relay100, small, connect, fanout, domains: as above; relay100 says what memory is taken too
//	latency         from MAIL FROM to the last octet at the next hop, the median and the 99th percentile
//	large           beside both, a program that does nothing but write, sync and send on the same octets
//	tls             TLS 1.3 in and out, a certificate of ECDSA P-256, X25519; each connection has one message
//	tls-resumed     the same, and sessions are resumed, in and out
//	tls-kept        the same with many messages for each connection, in and out
//	dkim-rsa        signatures by a key of 2,048 bits: of Posthaste's own, and by OpenDKIM for Postfix
//	dkim-ed25519    the same by an Ed25519 key
//	milter          a mail filter that reads header and body, and accepts; each mail system has one of its own
//	body_checks     50 patterns that do not match, and one that does
//	sql             recipients and aliases from PostgreSQL, by proxymap
//
// A round counts only if it was what it should be: the next hop and the load see TLS as it is described, each message
// has a DKIM signature of which one in each round is verified, the filter has seen each message, body_checks has
// changed each, and aliases that only the database has are replaced. Anything else is an error.
//
// With -busy each round comes twice: with nothing else to do, and beside so many compilers. -messages has a round send
// at most so many, to try a workload out. -bin has programs that are built already.
//
// # Beside compilers
//
// With -busy alone a command runs beside so many compilers, which compile Go's library again and again. So benchmarks
// that are tests show what becomes of them on a busy machine. What it says goes where this program's goes.
//
// # Diagnostics
//
// The exit status is 0; 1 when there is a loss: the whole interval is worse than -loss percent;
// and 2 when it could not be measured. An interval that is wider than that says so: more rounds
// are needed, or a machine with less to do.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	var o options
	flag.StringVar(&o.base, "base", "", "the commit to compare with; empty: the last release")
	flag.IntVar(&o.rounds, "rounds", 12, "pairs of each workload")
	flag.StringVar(&o.workloads, "workloads", "", "which, by comma; empty: all of "+strings.Join(names(), ", "))
	flag.Float64Var(&o.loss, "loss", 3, "percent that may be lost")
	flag.StringVar(&o.dir, "dir", "", "where queues are, on a disk like that of a mail server; empty: TMPDIR")
	flag.BoolVar(&o.keep, "keep", false, "leave configurations, logs and programs there")
	flag.BoolVar(&o.wait, "wait", false, "measure smtpd_delivery_wait, on this disk and on one whose syncs take 10 ms longer")
	flag.BoolVar(&o.sending, "sending", false, "measure what tenants, sources, shaping and events cost")
	flag.BoolVar(&o.serial, "serial", false, "measure the goroutines that more processors do not make faster")
	flag.BoolVar(&o.beside, "beside", false, "measure beside the Postfix that is installed")
	flag.IntVar(&o.messages, "messages", 0, "with -beside: messages in a round, at most; 0: as many as the workload has")
	flag.IntVar(&o.busy, "busy", 0, "with -beside: a second time beside so many compilers; alone: how many there are beside a command")
	flag.StringVar(&o.bin, "bin", "", "with -beside: where posthaste and posthaste-tables are built already")
	flag.StringVar(&o.part, "part", "", "be filter or bare, a process that -beside starts, at two addresses that follow")
	flag.StringVar(&o.shaping, "shaping", "", "shaping files for -sending, by comma")
	flag.Parse()
	if o.part != "" {
		if err := runPart(o.part, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "speed:", err)
			os.Exit(2)
		}
		return
	}
	o.command = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	lost, err := run(ctx, &o, os.Stdout)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "speed:", err)
		os.Exit(2)
	case lost:
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	base, workloads, dir string
	rounds               int
	loss                 float64 // percent
	keep                 bool
	wait                 bool
	sending              bool
	serial               bool
	shaping              string
	beside               bool
	messages, busy       int
	bin, part            string
	command              []string // what -busy is beside, if it is not what -beside has
}
