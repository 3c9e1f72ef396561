package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/service"
	"posthaste/internal/vfs/disktest"
)

// The queue is mail_owner's, and local is a process of root's. Where mail_owner has put a link in
// the queue to what only root can read, local does not read it, and goes on with other mail.
func TestPlantedContent(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root's privileges local cannot read more than the mail owner")
	}
	user := localUser(t)
	box := filepath.Join(mailDir(t, user), user)
	const deferred = "defer_transports = local\n"
	main := "mail_spool_directory = " + filepath.Dir(box) + "\nmessage_size_limit = 2m\nnotify_classes =\n"
	s := newSystem(t, options{main: main + deferred})
	s.mustSend("a@from.test", []string{user + "@local.test"}, largeMail("Subject: large"))
	s.waitLog(`status=deferred \(deferred transport\)`)
	s.mustTool("postsuper", "-h", "ALL")
	s.configure(main, "")
	s.mustTool("reload")
	// The new cleanup has its spool open when this is there.
	s.mustSend("a@from.test", []string{user + "@local.test"}, "Subject: before\n\nx\n")
	s.waitLog(`status=sent \(delivered to mailbox\)`)
	takeMail(t, box, false)
	list, _ := filepath.Glob(s.path("spool", "spool", "big", "*z*"))
	if len(list) != 1 {
		t.Fatalf("content: %q", list)
	}
	name, _ := mailOwner(t)
	owner, err := service.LookupAccount(name)
	if err != nil {
		t.Fatal(err)
	}
	big, away, secrets := filepath.Dir(list[0]), s.path("spool", "spool", "away"), s.path("secrets")
	mustDo := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mustDo(os.Mkdir(secrets, 0o700))
	disktest.Copy(t, list[0], filepath.Join(secrets, filepath.Base(list[0]))) // what would be found to be right
	mustDo(os.Rename(big, away))
	mustDo(os.Symlink(secrets, big))
	mustDo(os.Lchown(big, owner.UID, owner.GID))
	s.mustTool("postsuper", "-H", "ALL")
	s.waitLog(`postfix/local\[\d+\]: .*permission denied`)
	s.mustSend("a@from.test", []string{user + "@local.test"}, "Subject: small\n\nx\n")
	s.waitLogN(`status=sent \(delivered to mailbox\)`, 2)
	if text := takeMail(t, box, false); !strings.Contains(text, "Subject: small") || strings.Contains(text, "Subject: large") {
		t.Errorf("delivered: %.2000s", text)
	}
	mustDo(os.Remove(big))
	mustDo(os.Rename(away, big))
	s.mustTool("flush")
	s.waitLogN(`status=sent \(delivered to mailbox\)`, 3)
	if text := takeMail(t, box, false); !strings.Contains(text, "Subject: large") {
		t.Errorf("delivered: %.2000s", text)
	}
}
