package sasl

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/lockstep/hostile"
)

// cyrusFile writes an application's file, and reads it.
func cyrusFile(t *testing.T, text string) (*Cyrus, []string, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "smtpd.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return NewCyrus(CyrusOptions{Application: "smtpd", Dirs: []string{"/nonexistent", "", dir}, Service: "smtp", Realm: "example.test"})
}

func TestCyrusFile(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, mechs, warning, err string }{
		{"pwcheck_method: saslauthd\n", "PLAIN LOGIN", "", ""},
		{"# x\n\nPWCHECK_METHOD:saslauthd\r\nmech_list: LOGIN plain\nlog_level: 7\nsaslauthd_path: /x/mux", "LOGIN PLAIN", "", ""},
		{"pwcheck_method: saslauthd\nmech_list: PLAIN CRAM-MD5 DIGEST-MD5\n", "PLAIN", "smtpd.conf:2: mech_list: CRAM-MD5 DIGEST-MD5: not offered", ""},
		{"pwcheck_method: saslauthd\nsql_user: x\n", "PLAIN LOGIN", "smtpd.conf:2: sql_user: has no effect", ""},
		{"pwcheck_method: auxprop\n", "", "", "smtpd.conf:1: pwcheck_method: auxprop: expected pwcheck_method: saslauthd; for users in a table"},
		{"pwcheck_method: saslauthd auxprop\n", "", "", "expected pwcheck_method: saslauthd"},
		{"pwcheck_method: saslauthd\nmech_list: CRAM-MD5\n", "", "", "smtpd.conf:2: mech_list: CRAM-MD5: saslauthd can do PLAIN and LOGIN alone"},
		{"", "", "", "smtpd.conf: pwcheck_method is missing, which stands for auxprop"},
		{"pwcheck_method\n", "", "", "smtpd.conf:1: expected name: value"},
		{"saslauthd_path: mux\n", "", "", "smtpd.conf:1: saslauthd_path: mux: expected the path"},
		{strings.Repeat("#", maxCyrusFile+1), "", "", "more than 65536 octets"},
	} {
		c, warnings, err := cyrusFile(t, test.text)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%.100q: %v, want %s", test.text, err, test.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", test.text, err)
			continue
		}
		var names []string
		for _, m := range c.mechs {
			names = append(names, m.Name)
		}
		if got := strings.Join(names, " "); got != test.mechs {
			t.Errorf("%q: %s, want %s", test.text, got, test.mechs)
		}
		if got := strings.Join(warnings, "\n"); !strings.Contains(got, test.warning) || test.warning == "" && got != "" {
			t.Errorf("%q: warnings %q, want %s", test.text, got, test.warning)
		}
	}
	if _, _, err := NewCyrus(CyrusOptions{Application: "smtpd", Dirs: []string{t.TempDir()}}); err == nil || !strings.Contains(err.Error(), "there is no smtpd.conf in ") {
		t.Errorf("no file: %v", err)
	}
	if _, _, err := NewCyrus(CyrusOptions{Application: "../smtpd"}); err == nil {
		t.Error("a path is taken for a name")
	}
}

// saslauthdWords reads a question.
func saslauthdWords(r io.Reader) (words [4]string, err error) {
	for i := range words {
		var size [2]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return words, err
		}
		b := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(r, b); err != nil {
			return words, err
		}
		words[i] = string(b)
	}
	return words, nil
}

// saslauthdSays is an answer as it goes over the wire.
func saslauthdSays(text string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(len(text)))) + text
}

// saslauthd answers each question with what answer says, as it stands, and hangs up.
func saslauthd(t *testing.T, answer func(words [4]string) string) (c *Cyrus) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "mux")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if words, err := saslauthdWords(nc); err == nil {
				_, _ = io.WriteString(nc, answer(words))
			}
			nc.Close()
		}
	}()
	c, _, err = cyrusFile(t, "pwcheck_method: saslauthd\nsaslauthd_path: "+socket+"\n")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCyrusLogin(t *testing.T) {
	t.Parallel()
	c := saslauthd(t, func(w [4]string) string {
		switch w {
		case [4]string{"joe", "secret", "smtp", "example.test"}, [4]string{"ann", "secret", "smtp", "other.test"}:
			return saslauthdSays("OK success")
		case [4]string{"odd", "secret", "smtp", "example.test"}:
			return saslauthdSays("MAYBE")
		case [4]string{"short", "secret", "smtp", "example.test"}:
			return "\x00\x05OK"
		case [4]string{"long", "secret", "smtp", "example.test"}:
			return saslauthdSays("OK" + strings.Repeat("x", maxSaslauthdText))
		case [4]string{"more", "secret", "smtp", "example.test"}:
			return saslauthdSays("NO") + saslauthdSays("OK")
		case [4]string{"gone", "secret", "smtp", "example.test"}:
			return ""
		}
		return saslauthdSays("NO authentication failed")
	})
	for _, test := range []struct{ mech, user, password, name, outcome string }{
		{"PLAIN", "joe", "secret", "joe@example.test", "in"},
		{"LOGIN", "joe", "secret", "joe@example.test", "in"},
		{"LOGIN", "ann@other.test", "secret", "ann@other.test", "in"},
		{"PLAIN", "joe", "wrong", "joe@example.test", "out"},
		{"PLAIN", "nobody", "secret", "nobody@example.test", "out"},
		{"LOGIN", "joe", "", "joe@example.test", "out"},
		{"LOGIN", strings.Repeat("x", 300), "secret", "", "out"},
		{"LOGIN", "joe", strings.Repeat("x", 300), "", "out"},
		{"PLAIN", "odd", "secret", "", "unknown"},
		{"PLAIN", "short", "secret", "", "unknown"},
		{"PLAIN", "long", "secret", "", "unknown"},
		{"PLAIN", "gone", "secret", "", "unknown"},
	} {
		x, err := c.Start(t.Context(), test.mech, Client{})
		if err != nil {
			t.Fatal(err)
		}
		var done bool
		if test.mech == "PLAIN" {
			_, done, err = x.Next(t.Context(), []byte("\x00"+test.user+"\x00"+test.password))
		} else if _, _, err = x.Next(t.Context(), []byte(test.user)); err == nil {
			_, done, err = x.Next(t.Context(), []byte(test.password))
		}
		var f *Failure
		outcome := "unknown"
		switch {
		case err == nil && done:
			outcome = "in"
		case errors.As(err, &f):
			outcome = "out"
		}
		if outcome != test.outcome || test.name != "" && x.Username() != test.name {
			t.Errorf("%s %.20s %.20s: %s as %s, %v", test.mech, test.user, test.password, outcome, x.Username(), err)
		}
		x.Close()
	}
	if _, err := c.Start(t.Context(), "CRAM-MD5", Client{}); !errors.Is(err, ErrMechanism) {
		t.Errorf("CRAM-MD5: %v", err)
	}
	x, _ := c.Start(t.Context(), "PLAIN", Client{})
	if _, done, err := x.Next(t.Context(), []byte("\x00more\x00secret")); done {
		t.Errorf("two answers: %v", err)
	}
}

// hostileSaslauthd says that everybody is who he says that he is.
var hostileSaslauthd = hostile.Protocol{
	Question: func(r *bufio.Reader, _ net.Conn) (string, error) {
		w, err := saslauthdWords(r)
		return w[0], err
	},
	Answer:  func(string) []byte { return []byte(saslauthdSays("OK")) },
	Endless: "\x7f\xffx",
	Fresh:   true,
}

func TestHostileSaslauthd(t *testing.T) {
	t.Parallel()
	hostile.Run(t, hostileSaslauthd, func(t *testing.T, path string) hostile.Client {
		c, _, err := cyrusFile(t, "pwcheck_method: saslauthd\nsaslauthd_path: "+path+"\n")
		if err != nil {
			t.Fatal(err)
		}
		c.timeout, c.realm = 2*time.Second, ""
		return func(key string) (string, error) {
			x, err := c.Start(t.Context(), "PLAIN", Client{})
			if err != nil {
				return "", err
			}
			_, done, err := x.Next(t.Context(), []byte("\x00"+key+"\x00secret"))
			if err == nil && !done {
				err = errors.New("not done")
			}
			return x.Username(), err
		}
	})
}
