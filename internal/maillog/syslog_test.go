package maillog

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// hear reads one datagram.
func hear(t *testing.T, c net.PacketConn) string {
	t.Helper()
	b := make([]byte, 64<<10)
	c.SetReadDeadline(time.Now().Add(testwait.Patience))
	n, _, err := c.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// TestSyslog has the datagrams that each kind of log service gets.
func TestSyslog(t *testing.T) {
	t.Setenv("POSTLOG_HOSTNAME", "mx.example.com")
	path := filepath.Join(t.TempDir(), "log")
	local, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	remote, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	udp := "udp:" + remote.LocalAddr().String()
	const stamp, micros = `[A-Z][a-z]{2} [ 123]\d \d\d:\d\d:\d\d`, `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(?:Z|[-+]\d\d:\d\d)`
	pid := os.Getpid()
	ident := fmt.Sprintf(`postfix/qmgr\[%d\]: `, pid)
	object := fmt.Sprintf(`\{"time":"%s","host":"mx","process":"postfix/qmgr","pid":%d,"level":"warning","event":"removed","queue_id":"4b","text":"warning: 4b: removed"\}`, micros, pid)
	for _, test := range []struct {
		name string
		o    Syslog
		from net.PacketConn
		want string
	}{
		{"3164", Syslog{Protocol: "rfc3164", Socket: path, Facility: "mail"}, local, `<20>` + stamp + ` ` + ident + `warning: 4b: removed`},
		{"3164 JSON", Syslog{Protocol: "rfc3164", Socket: path, Facility: "local3", JSON: true}, local, `<156>` + stamp + ` ` + ident + object},
		{"3164 UDP", Syslog{Protocol: "rfc3164", Socket: udp, Facility: "local3"}, remote, `<156>` + stamp + ` mx ` + ident + `warning: 4b: removed`},
		{"5424", Syslog{Protocol: "rfc5424", Socket: path, Facility: "mail"}, local, fmt.Sprintf(`<20>1 %s mx\.example\.com postfix/qmgr %d - - warning: 4b: removed`, micros, pid)},
		{"5424 JSON UDP", Syslog{Protocol: "rfc5424", Socket: udp, Facility: "mail", JSON: true}, remote, fmt.Sprintf(`<20>1 %s mx\.example\.com postfix/qmgr %d - - %s`, micros, pid, object)},
		{"journal", Syslog{Protocol: "journal", Socket: path, Facility: "mail"}, local, fmt.Sprintf("MAIL_EVENT=removed\nPRIORITY=4\nSYSLOG_PID=%d\nSYSLOG_IDENTIFIER=postfix/qmgr\nMAIL_QUEUE_ID=4b\nMESSAGE=warning: 4b: removed\nSYSLOG_FACILITY=2\n", pid)},
	} {
		t.Run(test.name, func(t *testing.T) {
			sink, err := NewSyslog(test.o)
			if err != nil {
				t.Fatal(err)
			}
			l := New("postfix/qmgr", sink)
			l.LogWarning(&Removed{ID: "4b"}) // goes out at once
			if got := hear(t, test.from); !regexp.MustCompile("^" + test.want + "$").MatchString(got) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			l.Info("two %s", strings.Repeat("x", 2000))
			if got := hear(t, test.from); strings.TrimRight(got, "\n") == "" || !strings.Contains(got, strings.Repeat("x", 2000)) {
				t.Errorf("got %d bytes", len(got))
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSyslogRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		o    Syslog
		want string
	}{
		{Syslog{Protocol: "rfc3164", Facility: "nonsense"}, "syslog_facility = nonsense: expected a facility"},
		{Syslog{Protocol: "rfc3164", Facility: "mail", Socket: "log.example:514"}, "syslog_socket = log.example:514: expected the path"},
		{Syslog{Protocol: "rfc5424", Facility: "mail", Socket: "udp:log.example:514"}, "expected the path of a socket, or udp:ADDRESS:PORT"},
		{Syslog{Protocol: "journal", Facility: "mail", Socket: "udp:192.0.2.1:514"}, "a journal is on this machine"},
	} {
		if _, err := NewSyslog(test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test.o, err)
		}
	}
}

// TestSyslogAway: what is logged while nobody listens comes when somebody does,
// also when that is another one.
func TestSyslogAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	listen := func() net.PacketConn {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	sink, err := NewSyslog(Syslog{Protocol: "rfc3164", Socket: path, Facility: "mail"})
	if err != nil {
		t.Fatal(err)
	}
	l := New("t", sink)
	defer l.Close()
	for _, text := range []string{"one", "two"} {
		l.Info("%s", text) // nobody
		c := listen()
		if got := hear(t, c); !strings.HasSuffix(got, "]: "+text) {
			t.Errorf("got %q", got)
		}
		c.Close()
		os.Remove(path)
	}
}
