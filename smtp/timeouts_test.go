package smtp

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestTimeouts: for each reply the server has as long as the parameter for it says, and no other parameter: here seven
// seconds, where all others are a quarter of an hour. The log says at what it was given up.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	const hello = "S: 220 x ESMTP\nC: %s me.test\nS: 250-x\nS: 250-XFORWARD NAME\nS: 250 STARTTLS\n"
	const mail = "C: MAIL FROM:<from@here.test>\nS: 250 ok\n"
	const rcpt = "C: RCPT TO:<to@dest.test>\nS: 250 ok\n"
	const dot = "C: DATA\nS: 354 go\nC* .\n"
	until := func(script, line string) string { return script[:strings.Index(script, line)+len(line)+1] }
	all := []string{"helo", "starttls", "xforward", "mail", "rcpt", "data_init", "data_xfer", "data_done", "rset", "quit"}
	for program, greeting := range map[string]string{"smtp": "EHLO", "lmtp": "LHLO"} {
		opening := fmt.Sprintf(hello, greeting)
		for _, c := range []struct{ parameter, main, server, stage string }{
			{"helo", "", "", "receiving the initial server greeting"},
			{"helo", "", until(opening, "me.test"), "performing the " + greeting + " handshake"},
			{"starttls", "tls_security_level = encrypt", opening + "C: STARTTLS\n", "receiving the STARTTLS response"},
			{"xforward", "send_xforward_command = yes", opening + "C: XFORWARD NAME=c.test\n", "sending XFORWARD command"},
			{"mail", "", until(opening+mail, "here.test>"), "sending MAIL FROM"},
			{"rcpt", "", until(opening+mail+rcpt, "dest.test>"), "sending RCPT TO"},
			{"data_init", "", until(opening+mail+rcpt+dot, "DATA"), "sending DATA command"},
			{"data_done", "", opening + mail + rcpt + dot, "sending end of data -- message may be sent more than once"},
		} {
			t.Run(program+", "+c.stage, func(t *testing.T) {
				t.Parallel()
				name := func(parameter string) string {
					if program == "lmtp" && parameter == "helo" {
						parameter = "lhlo"
					}
					return program + "_" + parameter + "_timeout"
				}
				var main strings.Builder
				server, nexthop, delays := "/run/lmtp", "unix:/run/lmtp", "0/0/0/7"
				relay := "me.test[/run/lmtp]"
				if program == "lmtp" {
					main.WriteString("program = lmtp\n")
				} else {
					server, nexthop, relay = "192.0.2.1:26", "[192.0.2.1]:26", "192.0.2.1[192.0.2.1]:26"
				}
				for _, p := range all {
					limit := "900s"
					if p == c.parameter {
						limit = "7s"
					}
					fmt.Fprintf(&main, "%s = %s\n", name(p), limit)
				}
				if c.main != "" {
					fmt.Fprintf(&main, "%s_%s\n", program, c.main)
				}
				if c.parameter == "helo" || c.parameter == "starttls" {
					delays = "0/0/7/0"
				}
				why := "conversation with " + strings.TrimSuffix(relay, ":26") + " timed out while " + c.stage
				want := fmt.Sprintf("log: Q1: to=<to@dest.test>, relay=%s, delay=7, delays=%s, dsn=4.4.2, status=deferred (%s)\nsite failure: 4.4.2 %s\n", relay, delays, why, why)
				ar := &txtar.Archive{Files: []txtar.File{{Name: "config", Data: []byte(main.String())},
					{Name: "message", Data: []byte("nexthop: " + nexthop + "\nclient: c.test 192.0.2.9 4711 h.test ESMTP\n")},
					{Name: "server " + server, Data: []byte(c.server + "hang\n")}, {Name: "want", Data: []byte(want)}}}
				synctest.Test(t, func(t *testing.T) { runDialogue(t, "", ar) })
			})
		}
	}
}
