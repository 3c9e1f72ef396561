// Package srstool is the command posthaste srs: it rewrites senders as the mail system does when
// it forwards mail, and says which sender an SRS address stands for.
//
//	posthaste srs encode [-c config_directory] address ...
//	posthaste srs decode [-c config_directory] address ...
//
// Without arguments, addresses are read from standard input, one a line. Each result is a line of
// standard output.
//
// # Security
//
// It reads srs_secret_file, which as a rule only root may read. An address that decode accepts is
// one for which this site forwards bounces; one with a wrong hash, or that is too old, is refused
// as the SMTP server would.
//
// # Parameters
//
// srs_domain, srs_hash_length, srs_hash_minimum, srs_max_age, srs_secret_file, srs_separator.
//
// # Diagnostics
//
// The exit status is 0, or of sysexits.h: 64 for a wrong command line, 65 if an address cannot be
// rewritten or decoded, in which case the others still are, and 78 if srs_domain is not set.
package srstool

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/srs"
	"posthaste/internal/srs/srsconf"
)

const usage = "usage: posthaste srs encode|decode [-c config_directory] [address ...]"

// maxLine bounds an address, in octets.
const maxLine = 4096

// Run runs posthaste srs, and returns its exit status.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	t := &cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	if len(args) == 0 || args[0] != "encode" && args[0] != "decode" {
		return t.Fatal(cli.ExitUsage, "%s", usage)
	}
	opts, addresses, err := cli.Getopt(args[1:], "c:")
	if err != nil {
		return t.Fatal(cli.ExitUsage, "%s", usage)
	}
	dir := ""
	for _, o := range opts {
		dir = o.Value
	}
	cfg, err := config.Load(config.Dir(dir))
	if err != nil {
		return t.Fatal(cli.ExitConfig, "%v", err)
	}
	r, err := srsconf.Load(cfg)
	if err == nil && r == nil {
		err = fmt.Errorf("srs_domain is not set: senders are not rewritten")
	}
	if err != nil {
		return t.Fatal(cli.ExitConfig, "%v", err)
	}
	return convert(t, converter(r, args[0]), addresses)
}

// converter is what makes the result of one address.
func converter(r *srs.Rewriter, verb string) func(address string) (string, error) {
	if verb == "decode" {
		return func(address string) (string, error) { return r.Reverse(address, time.Now()) }
	}
	return func(address string) (string, error) {
		rewritten, ok := r.Forward(address, time.Now())
		if !ok {
			return "", fmt.Errorf("it is not rewritten: it is empty, of %s itself, malformed, or too long", r.Domain)
		}
		return rewritten, nil
	}
}

// convert converts addresses, or those of standard input where there are none, and returns the exit
// status.
func convert(t *cli.Tool, one func(address string) (string, error), addresses []string) int {
	w := &cli.ErrWriter{W: t.Stdout}
	status := 0
	each := func(address string) {
		result, err := one(strings.Trim(address, "<>"))
		if err != nil {
			t.Warn("%.200q: %v", address, err)
			status = cli.ExitData
			return
		}
		fmt.Fprintln(w, result)
	}
	for _, a := range addresses {
		each(a)
	}
	if len(addresses) == 0 {
		in := bufio.NewScanner(t.Stdin)
		in.Buffer(nil, maxLine)
		for in.Scan() {
			each(strings.TrimSpace(in.Text()))
		}
		if err := in.Err(); err != nil {
			return t.Fatal(cli.ExitNoInput, "standard input: %v", err)
		}
	}
	if w.Err != nil {
		return t.Fatal(cli.ExitIO, "%v", w.Err)
	}
	return status
}
