package local

import (
	"os"
	"testing"

	"posthaste/internal/rights"
)

// TestSpoolOfMaildirs: what somebody has put into a spool directory that
// everybody may write to is nobody else's maildir.
func TestSpoolOfMaildirs(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root")
	}
	s := newSite(t, "", "mail_spool_directory = %DIR%/spool/\nalias_maps =")
	for _, name := range []string{"root", "joe"} {
		if err := os.Symlink(s.path("home/joe"), s.path("spool/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"root", "joe"} {
		s.expect(s.deliver(name+"@example.org"), "delayed 4.2.0 maildir delivery failed: destination %DIR%/spool/"+name+"/ is not a directory")
	}
	if _, err := os.Lstat(s.path("home/joe/new")); err == nil {
		t.Error("a directory was made where a link leads")
	}
	s.expect(s.deliver("ann@example.org"), "delivered 2.0.0 delivered to maildir")
}
