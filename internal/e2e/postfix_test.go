package e2e

import (
	"fmt"
	"strings"
	"testing"

	"posthaste/internal/testpostfix"
)

// newPostfix is the original with the same settings, for comparing. It needs
// root, as the original does.
func newPostfix(t testing.TB, o options) *system {
	t.Helper()
	p := testpostfix.New(t)
	s := &system{t: t, original: p, dir: p.Dir, port: p.Port}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the original:\n%s", s.log())
		}
	})
	r := strings.NewReplacer("{dir}", s.dir, "{port}", fmt.Sprint(s.port), "command_directory = {bin}\n", "", "mail_owner = {owner}\n", "",
		"setgid_group = {group}\n", "")
	p.Configure(r.Replace(usualMain+o.main), r.Replace(usualMaster+o.master))
	if !o.unstarted {
		s.start()
	}
	return s
}
