package e2e

import (
	"os"
	"os/user"
	"strings"
	"testing"
)

// A policy server that is a program is started for smtpd by spawn, as somebody
// else, and serves its connection until smtpd has gone.
func TestSpawn(t *testing.T) {
	t.Parallel()
	name := "nobody"
	if u, err := user.Current(); err == nil && os.Getuid() != 0 {
		name = u.Username
	}
	s := newSystem(t, options{unstarted: true})
	s.configure("smtpd_recipient_restrictions = check_policy_service unix:private/policy, permit\n",
		"policy unix - n n - 5 spawn user="+name+" argv=/bin/sh "+s.path("policy")+"\n")
	s.write("policy", `while read line; do
	case $line in
	recipient=*) rcpt=${line#recipient=} ;;
	"") printf 'action=REJECT %s says %s no\n\n' "$(id -un)" "$rcpt" ;;
	esac
done
`)
	s.start()
	replies := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<b@to.test>", "RCPT TO:<c@to.test>", "QUIT")
	for i, rcpt := range []string{"b@to.test", "c@to.test"} {
		want := "554 5.7.1 <" + rcpt + ">: Recipient address rejected: " + name + " says " + rcpt + " no"
		if got := strings.TrimSpace(replies[3+i]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
