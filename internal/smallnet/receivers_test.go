package smallnet

import (
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"posthaste/internal/testpeers"
)

// liar has a program in C take it for another time of the day. (faketime's library and the allocator of
// rspamd do not get on.)
const liar = `#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = syscall(SYS_clock_gettime, clock, t);
	if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += OFFSET;
	return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	int r = syscall(SYS_gettimeofday, t, zone);
	if (r == 0)
		t->tv_sec += OFFSET;
	return r;
}

time_t time(time_t *t)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
`

// lie makes the library for a clock that is ahead by so many seconds, and gives it to a host.
func (h *host) lie(ahead string) {
	h.t.Helper()
	cc := testpeers.Program(h.t, "cc")
	dir := h.t.TempDir()
	h.write("tmp/liar.c", liar)
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O", "-DOFFSET="+ahead, "-o", filepath.Join(dir, "liar.so"), h.path("tmp/liar.c")).CombinedOutput(); err != nil {
		h.t.Fatalf("%v\n%s", err, out)
	}
	h.copyFrom(filepath.Join(dir, "liar.so"), "tmp/liar"+ahead+".so")
}

// at starts a program that verifies mail anew, with a clock that is ahead by so many seconds.
func (h *host) at(ahead, name, command string) {
	h.t.Helper()
	h.lie(ahead)
	h.must("pkill -x " + name + "; while pgrep -x " + name + " >/dev/null; do sleep 0.1; done")
	h.daemon(name, "env LD_PRELOAD=/tmp/liar"+ahead+".so "+command)
}

// receivers: the clocks of those who exchange mail with us are wrong by a day. Our signatures, which do not
// say when they were made, pass all the same. A signature of theirs that is made tomorrow is taken; one that
// has expired is not, and the result says so; their mail comes in by SPF.
func (s *story) receivers() {
	t := s.t
	// Its own resolver would take the signatures in the DNS for those of another day.
	s.postfix.must("sed -i '/^TrustAnchorFile/d' /etc/opendkim.conf; echo 'SignatureTTL 3600' >>/etc/opendkim.conf")
	verify := func(ahead string) {
		s.rspamd.at(ahead, "rspamd", "rspamd -f -i -u root -g root -c /etc/small-rspamd.conf")
		s.postfix.at(ahead, "opendkim", "opendkim -f -x /etc/opendkim.conf")
		s.exim.at(ahead, "exim4", "exim4 -bdf -q1s")
		s.postfix.listens("8891")
		s.exim.listens("25")
		s.rspamd.listens("11332")
	}
	for ahead, theirs := range map[string]string{"-86400": `dkim=permerror reason="signature has expired"`, "86400": "dkim=pass"} {
		verify(ahead)
		subject := "clocks are ahead by " + ahead
		hosts := []*host{s.postfix, s.rspamd, s.exim}
		for _, h := range hosts {
			send(s.ours, "ann@example.org", "joe@"+h.name[len("mx."):], "of ours, "+subject)
		}
		for _, h := range hosts {
			found(t, h.mail("joe", "Subject: of ours, "+subject), "dkim=pass")
		}
		// Programs whose clocks are right would prove nothing. That of OpenDKIM is seen by its own signatures.
		offset, err := time.ParseDuration(ahead + "s")
		if err != nil {
			t.Fatal(err)
		}
		day := "\n" + time.Now().Add(offset).UTC().Format(time.DateOnly) + " "
		for name, log := range map[string]string{"rspamd": s.rspamd.read("var/log/rspamd.out"), "Exim": s.exim.read("var/log/exim4/mainlog")} {
			if !strings.Contains("\n"+log, day) {
				t.Errorf("the clock of %s is not ahead by %s s:\n%s", name, ahead, log)
			}
		}
		send(s.postfix, "joe@pfix.net", "ann@example.org", "of theirs, "+subject)
		found(t, s.ours.mail("ann", "Subject: of theirs, "+subject), theirs, "spf=pass", "dmarc=pass")
	}
	s.postfix.must("sed -i '/^SignatureTTL/d' /etc/opendkim.conf")
	verify("0")
}
