package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/smtp"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/testwait"
	"posthaste/internal/vfs/disktest"
)

// numbered is the content of message n of those that a test can tell whole
// from torn: the last line is the first one's again, and large ones take
// several pages, where a writer that is killed may be cut off.
func numbered(run int64, n int) string {
	return fmt.Sprintf("Subject: load-%d-%d\n\n%send-%d-%d\n", run, n, strings.Repeat("From here on a line of the text.\n", n%300), run, n)
}

// stored is what a mailbox shows of numbered.
var stored = regexp.MustCompile(`(?s)Subject: load-(\d+)-(\d+)\n(?:[^\n]+\n)*\n((?:>?From here on a line of the text\.\n)*)end-(\d+)-(\d+)\n+$`)

// whole says which of the numbered messages m is, and whether it is whole.
func whole(m string) (run int64, n int, ok bool) {
	g := stored.FindStringSubmatch(m)
	if g == nil || g[1] != g[4] || g[2] != g[5] {
		return 0, 0, false
	}
	run, _ = strconv.ParseInt(g[1], 10, 64)
	n, _ = strconv.Atoi(g[2])
	return run, n, strings.Count(g[3], "\n") == n%300
}

// splitMbox cuts an mbox into messages: each is begun by a line "From ", at
// the beginning or after an empty line.
func splitMbox(text string) []string {
	if text == "" {
		return nil
	}
	list := strings.Split(text, "\n\nFrom ")
	for i := range list {
		list[i] += "\n\n"
	}
	return list
}

// The messages of one client reach one mbox in order, none lost or torn, while
// somebody else takes the mail out of it, as a POP server does.
func TestMboxReader(t *testing.T) {
	t.Parallel()
	messages := 700
	switch {
	case *wholeMix:
		messages = 2000
	case underRace: // which takes ten times as long
		messages = 300
	}
	user := localUser(t)
	box := filepath.Join(mailDir(t, user), user)
	s := newSystem(t, options{main: "mail_spool_directory = " + filepath.Dir(box) + "\nlocal_destination_concurrency_limit = 1\n" +
		"mailbox_delivery_lock = fcntl, dotlock\n"})
	// What comes while the queue manager is starting is in no order yet.
	s.mustSend("load@from.test", []string{user + "@local.test"}, numbered(0, 0))
	s.waitLog(`status=sent`)
	takeMail(t, box, false)
	sent := make(chan error, 1)
	go func() { sent <- s.sendNumbered(user+"@local.test", messages) }()
	next := 0
	for round, limit := 0, time.Now().Add(5*patience); next < messages; round++ {
		if time.Now().After(limit) {
			t.Fatalf("%d of %d messages have arrived", next, messages)
		}
		for _, m := range splitMbox(takeMail(t, box, round%2 == 0)) {
			_, n, ok := whole(m)
			if !ok || n != next {
				t.Fatalf("message %d of %d in the mailbox: %q", next, messages, m)
			}
			next++
		}
		time.Sleep(5 * time.Millisecond) // a reader that reads all the time keeps the writer out
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if left := takeMail(t, box, false); left != "" {
		t.Errorf("mail that nobody sent: %q", left)
	}
}

// sendNumbered sends messages one after the other on one connection.
func (s *system) sendNumbered(to string, messages int) error {
	c, err := smtp.Dial(s.addr())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Hello("client.test"); err != nil {
		return err
	}
	for n := range messages {
		if err := transaction(c, "load@from.test", []string{to}, numbered(0, n)); err != nil {
			return err
		}
	}
	return c.Quit()
}

// takeMail takes all mail out of a mailbox while it has locked it, in the
// kernel or by a lock file.
func takeMail(t *testing.T, box string, dotlock bool) string {
	t.Helper()
	f, err := os.OpenFile(box, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if dotlock {
		for limit := time.Now().Add(patience); ; {
			l, err := os.OpenFile(box+".lock", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err == nil {
				l.Close()
				break
			}
			if time.Now().After(limit) {
				t.Fatal(err)
			}
		}
		defer os.Remove(box + ".lock")
	} else {
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_SETLKW, &lock); err != nil {
			t.Fatal(err)
		}
	}
	// By way of f: closing another descriptor of the file would give up the lock.
	text, err := io.ReadAll(f)
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// When everything is killed in the middle of deliveries, each message that was
// acknowledged is delivered whole at least once, and what was torn costs no
// other message.
func TestKillDuringDelivery(t *testing.T) {
	t.Parallel()
	const rounds = 4
	user := localUser(t)
	dir := mailDir(t, user)
	box, maildir := filepath.Join(dir, user), filepath.Join(dir, "md")
	s := newSystem(t, options{unstarted: true, main: "mail_spool_directory = " + dir + "\nalias_maps = texthash:{dir}/etc/aliases\ndefault_privs = " + user +
		"\nminimal_backoff_time = 1s\nmaximal_backoff_time = 2s\nqueue_run_delay = 1s\ntransport_retry_time = 1s\nstale_lock_time = 1s\n"})
	s.write("etc/aliases", "dir "+maildir+"/\n")
	accepted := map[string]bool{}
	for range rounds {
		s.start()
		l := startLoadOf(s, 6, []string{user + "@local.test", "dir@local.test"}, numbered)
		l.waitAccepted(60)
		syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		for _, pid := range s.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		l.end()
		<-s.done
		s.eventually("all processes are gone", func() bool { return len(s.processes()) == 0 })
		for _, n := range l.accepted {
			accepted[fmt.Sprint(l.run, " ", n)] = true
		}
	}
	s.start()
	for _, read := range []func() ([]string, int){
		func() ([]string, int) { b, _ := os.ReadFile(box); return splitMbox(string(b)), rounds },
		func() ([]string, int) { return readMaildir(maildir), 0 },
	} {
		// A duplicate may be on its way into the mbox while it is read.
		testwait.For(t, func() string {
			list, mayTear := read()
			there := map[string]bool{}
			var torn, missing []string
			for _, m := range list {
				if run, n, ok := whole(m); ok {
					there[fmt.Sprint(run, " ", n)] = true
				} else {
					torn = append(torn, fmt.Sprintf("%.300q", m))
				}
			}
			for m := range accepted {
				if !there[m] {
					missing = append(missing, m)
				}
			}
			if len(missing) == 0 && len(torn) <= mayTear {
				return ""
			}
			return fmt.Sprintf("every acknowledged message is delivered (missing: %d, %.10q), and no more than %d are torn: %d, %s", len(missing), missing, mayTear, len(torn), torn)
		})
	}
}

// readMaildir is what a reader of a maildir sees.
func readMaildir(dir string) (messages []string) {
	list, _ := filepath.Glob(filepath.Join(dir, "new", "*"))
	for _, name := range list {
		b, _ := os.ReadFile(name)
		messages = append(messages, string(b))
	}
	return messages
}

// A mailbox on a full disk stays as it was and the mail waits; when there is
// room it is delivered.
func TestFullMailboxDisk(t *testing.T) {
	t.Parallel()
	user := localUser(t)
	dir := mailDir(t, user)
	disktest.MountAt(t, dir, "-t", "tmpfs", "-o", "size=256k,mode=1777", "tmpfs")
	box, maildir := filepath.Join(dir, user), filepath.Join(dir, "md")
	s := newSystem(t, options{unstarted: true, main: "mail_spool_directory = " + dir + "\nalias_maps = texthash:{dir}/etc/aliases\ndefault_privs = " + user + "\n"})
	s.write("etc/aliases", "dir "+maildir+"/\n")
	s.start()
	to := []string{user + "@local.test", "dir@local.test"}
	s.mustSend("a@from.test", to, numbered(0, 1))
	s.waitLogN(`status=sent \(delivered to `, 2)
	before, err := os.ReadFile(box)
	if err != nil {
		t.Fatal(err)
	}
	filler := disktest.Fill(t, dir)
	s.mustSend("a@from.test", to, numbered(0, 299))
	s.waitLog(`status=deferred \(cannot update mailbox ` + box + ` for user ` + user + `\. error writing message: No space left on device\)`)
	s.waitLog(`status=deferred \(maildir delivery failed: .*No space left on device\)`)
	if after, err := os.ReadFile(box); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the mailbox is not as it was: %v, %q", err, after)
	}
	if list, _ := filepath.Glob(maildir + "/*/*"); len(list) != 1 {
		t.Errorf("the maildir is not as it was: %v", list)
	}
	disktest.Free(t, filler)
	if out, status := s.tool(nil, "postqueue", "-f"); status != 0 {
		t.Fatal(out)
	}
	s.waitLogN(`status=sent \(delivered to `, 4)
	text, _ := os.ReadFile(box)
	for where, list := range map[string][]string{"mailbox": splitMbox(string(text)), "maildir": readMaildir(maildir)} {
		if len(list) != 2 {
			t.Errorf("%s: %q", where, list)
		}
		for i, m := range list {
			if _, n, ok := whole(m); !ok || n != []int{1, 299}[i] {
				t.Errorf("%s: message %d: %.200q", where, n, m)
			}
		}
	}
}

// A command that does not end stops the deliveries to it, and no others.
func TestHangingCommand(t *testing.T) {
	t.Parallel()
	const others = 50
	user := localUser(t)
	dir := mailDir(t, user)
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chmod(fifo, 0o666)
	s := newSystem(t, options{unstarted: true, main: "mail_spool_directory = " + dir + "\nalias_maps = texthash:{dir}/etc/aliases\ndefault_privs = " + user + "\n"})
	s.write("etc/aliases", "hangs \"|cat > /dev/null; read line < "+fifo+"\"\n")
	s.start()
	const hanging = 5 // more than may be delivered to one recipient at a time
	for n := range hanging {
		s.mustSend("a@from.test", []string{"hangs@local.test"}, numbered(1, n))
	}
	for n := range others {
		s.mustSend("a@from.test", []string{user + "@local.test"}, numbered(2, n))
	}
	s.waitLogN(`to=<`+user+`@local\.test>, .*status=sent \(delivered to mailbox\)`, others)
	if strings.Contains(s.log(), "to=<hangs@local.test>") {
		t.Error("a command that hangs has ended")
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0) // who opens it for reading goes on
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Repeat("go on\n", 8*hanging)); err != nil {
		t.Fatal(err)
	}
	s.waitLogN(`to=<hangs@local\.test>, .*status=sent \(delivered to command: `, hanging)
}
