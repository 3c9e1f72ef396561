// Servers of mail have certificates that nobody looks at: see cmd/posthaste.

//go:debug x509negativeserial=1

// Posthaste-pg is what of Posthaste touches the queue where a PostgreSQL database keeps it
// (spool_type = postgresql): the services that master then executes in it, the commands that read mail, and
// "posthaste cluster". It is a program of its own so that the others are spared the database's client.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"posthaste/cleanup"
	"posthaste/internal/bounce"
	"posthaste/internal/cli"
	"posthaste/internal/cluster"
	"posthaste/internal/pgspool"
	"posthaste/internal/postcat"
	"posthaste/internal/qshape"
	"posthaste/internal/service"
	"posthaste/internal/spoolmove"
	"posthaste/internal/spooltool"
	"posthaste/internal/storage"
	"posthaste/local"
	"posthaste/local/discard"
	"posthaste/local/errordrop"
	"posthaste/local/pipe"
	"posthaste/local/virtual"
	"posthaste/qmgr"
	"posthaste/smtp"
)

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

// run is main with everything from outside as arguments. It returns the exit status.
func run(argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name, args := storage.Program, []string(nil)
	if len(argv) > 0 {
		name, args = filepath.Base(argv[0]), argv[1:]
	}
	if name == storage.Program && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	for _, spec := range services() {
		if spec.Process == name {
			spec.Storage = pgspool.Kind
			return service.Main(spec, args)
		}
	}
	switch name {
	case "postcat":
		return postcat.Run(name, args, pgspool.Kind, stdin, stdout, stderr)
	case "qshape":
		return qshape.Run(name, args, pgspool.Kind, stdout, stderr)
	case "spool":
		if _, verb, err := cli.Getopt(args, "c:"); err == nil && len(verb) > 0 && verb[0] == "migrate" {
			return spoolmove.Run("posthaste spool", args, stdout, stderr)
		}
		return spooltool.Run("posthaste spool", args, pgspool.Kind, stdin, stdout, stderr)
	case "cluster":
		return cluster.Run("posthaste cluster", args, stdout, stderr)
	}
	fmt.Fprintf(stderr, "%s: fatal: it is executed by posthaste, as a service or a command that touches the queue\n", storage.Program)
	return 1
}

// services are those with Spec.Queue.
func services() []service.Spec {
	return []service.Spec{cleanup.Spec(), qmgr.Spec(), bounce.Spec(), smtp.Spec(), smtp.LMTPSpec(), local.Spec(), virtual.Spec(), pipe.Spec(),
		discard.Spec(), errordrop.Spec()}
}
