package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/usage"
)

// Every command says on standard output how it is called when it is asked, and does nothing else:
// "posthaste stop --help" stops nothing. A mistake is told on standard error, and is no success.
func TestUsage(t *testing.T) {
	// It is nowhere: help needs no configuration, and nothing else that runs is met.
	t.Setenv("MAIL_CONFIG", t.TempDir())
	control := []string{"start", "start-fg", "stop", "abort", "reload", "status", "flush", "check", "set-permissions", "upgrade-configuration", "logrotate", "migrate", "try", "tls"}
	play := func(argv ...string) (status int, out, errs string) {
		var o, e strings.Builder
		status = run(argv, strings.NewReader(""), &o, &e)
		return status, o.String(), e.String()
	}
	names := slices.Sorted(maps.Keys(tools()))
	for _, name := range append(names, control...) {
		for _, argv := range [][]string{{"posthaste", name, "--help"}, {"posthaste", "-c", "/none", name, "--help"}} {
			status, out, errs := play(argv...)
			want := "usage: " + name + " "
			if strings.HasPrefix(out, "usage: posthaste ") {
				want = "usage: posthaste [-c config_dir] " + name
			}
			if status != 0 || errs != "" || !strings.HasPrefix(out, want) || !strings.HasSuffix(out, "(1), the manual page, says more.\n") {
				t.Errorf("%q: status %d, %q, %q", argv, status, out, errs)
			}
			for line := range strings.Lines(out) {
				if len(line) > 81 {
					t.Errorf("%q: a long line: %s", argv, line)
				}
			}
		}
		status, out, errs := play("posthaste", name, "-Z")
		if status == 0 || out != "" || errs == "" {
			t.Errorf("%s -Z: status %d, %q, %q", name, status, out, errs)
		}
	}
	for _, name := range names {
		if usage.Of(name) == "" {
			t.Errorf("%s has no help", name)
		}
		if spec, ok := services()[name]; ok && spec.Program == "" {
			continue // a link of that name is the service: "bounce" is one as well
		}
		if _, out, _ := play(name, "--help"); out != usage.Of(name) { // by a link
			t.Errorf("%s --help: %q", name, out)
		}
	}
	for _, argv := range [][]string{{"posthaste", "queue", "suspend", "--help"}, {"posthaste", "spool", "check", "--help"}, {"posthaste", "tls", "deploy-server-cert", "--help"}} {
		if status, out, _ := play(argv...); status != 0 || !strings.Contains(out, argv[1]+" "+argv[2]) {
			t.Errorf("%q: status %d, %q", argv, status, out)
		}
	}
	// What is for another program is not for this one.
	if status, out, _ := play("posthaste", "postmulti", "-x", "true", "--help"); status == 0 || out != "" {
		t.Errorf("postmulti -x true --help: %d %q", status, out)
	}
	if got := usage.Of("none"); got != "" {
		t.Errorf("an unknown command: %q", got)
	}
}
