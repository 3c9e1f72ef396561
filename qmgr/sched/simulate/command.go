package simulate

import (
	"flag"
	"fmt"
	"io"
	"os"
)

// Command is the program "posthaste simulate [-csv | -svg] [FILE]": it runs
// the workload in FILE, or of standard input, and prints the report. It
// returns the exit status: 0, 1 when the workload cannot be run, 64 for bad
// usage.
func Command(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asCSV := flags.Bool("csv", false, "print comma-separated values")
	asSVG := flags.Bool("svg", false, "print a plot")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: posthaste simulate [-csv | -svg] [FILE]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil || flags.NArg() > 1 || *asCSV && *asSVG {
		if err == nil {
			flags.Usage()
		}
		return 64
	}
	in := stdin
	if flags.NArg() == 1 {
		f, err := os.Open(flags.Arg(0))
		if err != nil {
			fmt.Fprintf(stderr, "simulate: fatal: %v\n", err)
			return 1
		}
		defer f.Close()
		in = f
	}
	r, err := Run(in)
	if err == nil {
		switch {
		case *asCSV:
			err = r.WriteCSV(stdout)
		case *asSVG:
			err = r.WriteSVG(stdout)
		default:
			err = r.WriteText(stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "simulate: fatal: %v\n", err)
		return 1
	}
	return 0
}
