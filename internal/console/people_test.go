package console

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/sasl"
	"posthaste/internal/service"
)

// passwordOf is the password of everybody whom the servers of these tests know.
func passwordOf(user string) string { return "secret of " + user }

// listen serves connections to a socket, one at a time, until the test ends.
func listen(t *testing.T, serve func(net.Conn)) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "phl")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done; os.RemoveAll(dir) })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
			conn.Close()
		}
	}()
	return path
}

// saslauthd answers as the password daemon of Cyrus SASL.
func saslauthd(t *testing.T, asked chan<- string) string {
	return listen(t, func(conn net.Conn) {
		var words []string
		for range 4 {
			var n uint16
			if binary.Read(conn, binary.BigEndian, &n) != nil {
				return
			}
			b := make([]byte, n)
			if _, err := io.ReadFull(conn, b); err != nil {
				return
			}
			words = append(words, string(b))
		}
		asked <- strings.Join(words[2:], "/")
		answer := "NO"
		if words[1] == passwordOf(words[0]) {
			answer = "OK"
		}
		_ = binary.Write(conn, binary.BigEndian, uint16(len(answer)))
		_, _ = io.WriteString(conn, answer)
	})
}

// dovecot answers as Dovecot's authentication server, with a mechanism or two. Each user's name is what as makes of it.
func dovecot(t *testing.T, mechanisms []string, as func(string) string, asked chan<- string) string {
	return listen(t, func(conn net.Conn) {
		fmt.Fprint(conn, "VERSION\t1\t1\n")
		for _, m := range mechanisms {
			fmt.Fprintf(conn, "MECH\t%s\tplaintext\n", m)
		}
		fmt.Fprint(conn, "DONE\n")
		var steps [][]byte
		for in := bufio.NewScanner(conn); in.Scan(); {
			words := strings.Split(in.Text(), "\t")
			if words[0] != "AUTH" && words[0] != "CONT" {
				continue
			}
			last := strings.TrimPrefix(words[len(words)-1], "resp=")
			if b, err := base64.StdEncoding.DecodeString(last); err == nil && (words[0] == "CONT" || strings.HasPrefix(words[len(words)-1], "resp=")) {
				steps = append(steps, b)
			}
			if words[0] == "AUTH" {
				asked <- words[3] + "/" + strings.Join(words[4:len(words)-1], " ")
			}
			user, password := "", ""
			switch {
			case words[0] == "AUTH" && words[2] == "LOGIN", len(steps) == 1 && bytes.IndexByte(steps[0], 0) < 0:
				fmt.Fprint(conn, "CONT\t1\tVXNlcm5hbWU6\n")
				continue
			case len(steps) == 2:
				user, password = string(steps[0]), string(steps[1])
			case len(steps) == 1:
				part := strings.Split(string(steps[0]), "\x00")
				user, password = part[1], part[2]
			}
			if password == passwordOf(user) {
				fmt.Fprintf(conn, "OK\t1\tuser=%s\n", as(user))
			} else {
				fmt.Fprint(conn, "FAIL\t1\treason=no\n")
			}
		}
	})
}

// usersOf opens the users of smtpd_sasl_type in a configuration.
func usersOf(t *testing.T, main string) *people {
	t.Helper()
	var env *service.Env = environment(t, main)
	who, _, l, err := prepare(env)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return who
}

// The users of the SMTP server log in to the console, whatever it has them from, if a table gives them a role, and with that
// role; all others learn no more than from a wrong password. The backend is told who asks from where.
func TestSASLUsers(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 100)
	var out bytes.Buffer
	if sasl.Passwd([]string{"bob"}, strings.NewReader(passwordOf("bob")+"\n"), &out, io.Discard) != 0 {
		t.Fatal("no secret")
	}
	_, secret, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
	hash, err := sasl.NewHash("argon2id", passwordOf("bob"))
	if err != nil {
		t.Fatal(err)
	}
	secret, hash = strings.ReplaceAll(secret, "$", "$$"), strings.ReplaceAll(hash, "$", "$$") // main.cf expands $
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sasl"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sasl", "smtpd.conf"), []byte("pwcheck_method: saslauthd\nsaslauthd_path: "+saslauthd(t, asked)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	same := func(s string) string { return s }
	const roles = "console_listen = 127.0.0.1:0\nconsole_sasl_users = yes\nconsole_role_maps = inline:{ {bob = operate}, {ann = look read}, {bob@x.test = look} }\n"
	for _, c := range []struct {
		main, user, password, rights, say string
	}{
		{"smtpd_sasl_type = table\nsmtpd_sasl_path = inline:{ {bob = " + secret + "}, {joe = " + secret + "} }\n", "bob", "secret of bob", "operate", ""},
		{"smtpd_sasl_type = table\nsmtpd_sasl_path = inline:{ {bob = " + secret + "}, {joe = " + secret + "} }\n", "joe", "secret of bob", "", "console_role_maps has no role for joe"},
		{"smtpd_sasl_type = accounts\naccount_maps = inline:{ {bob = " + hash + "} }\n", "bob", "secret of bob", "operate", ""},
		{"smtpd_sasl_type = accounts\naccount_maps = inline:{ {bob = " + hash + " disabled} }\n", "bob", "secret of bob", "", errLogin.Error()},
		{"smtpd_sasl_type = cyrus\nsmtpd_sasl_path = smtpd\ncyrus_sasl_config_path = " + dir + "/sasl\n", "bob", "secret of bob", "operate", "smtp/"},
		{"smtpd_sasl_type = cyrus\nsmtpd_sasl_path = smtpd\ncyrus_sasl_config_path = " + dir + "/sasl\nsmtpd_sasl_local_domain = x.test\n", "bob", "secret of bob", "look", "smtp/x.test"},
		{"smtpd_sasl_type = cyrus\nsmtpd_sasl_path = smtpd\ncyrus_sasl_config_path = " + dir + "/sasl\n", "bob", "wrong", "", errLogin.Error()},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + dovecot(t, []string{"PLAIN", "LOGIN"}, same, asked) + "\n", "ann", "secret of ann", "look read", "service=smtp/"},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + dovecot(t, []string{"LOGIN"}, same, asked) + "\n", "ann", "secret of ann", "look read", "rip=192.0.2.7"},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + dovecot(t, []string{"PLAIN"}, same, asked) + "\n", "ann", "wrong", "", errLogin.Error()},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + dovecot(t, []string{"CRAM-MD5"}, same, asked) + "\n", "ann", "secret of ann", "", "no mechanism PLAIN or LOGIN"},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + dovecot(t, []string{"PLAIN"}, func(s string) string { return "oidc/" + s }, asked) + "\n", "ann", "secret of ann", "", "cannot be that of one of the console"},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + dovecot(t, []string{"PLAIN"}, func(s string) string { return s + " operate" }, asked) + "\n", "ann", "secret of ann", "", "cannot be that of one of the console"},
		{"smtpd_sasl_type = dovecot\nsmtpd_sasl_path = " + filepath.Join(dir, "nosuch") + "\n", "ann", "secret of ann", "", "authentication server"},
	} {
		p := usersOf(t, roles+c.main)
		for len(asked) > 0 {
			<-asked
		}
		who, err := p.login(t.Context(), client{"192.0.2.7", sasl.Client{RemoteAddr: "192.0.2.7", LocalAddr: "192.0.2.1"}}, c.user, c.password)
		said := ""
		if err != nil {
			said = err.Error()
		}
		for len(asked) > 0 && err == nil {
			said += <-asked + "/"
		}
		if (err == nil) != (c.rights != "") || err == nil && who.rights() != c.rights || !strings.Contains(said, c.say) {
			t.Errorf("%s%s: %q %s, %v; %s", c.main, c.user, who.user, who.rights(), err, said)
		}
		if err != nil && (who.may(look) || who.may(read)) {
			t.Errorf("%s: who is not let in may %s", c.main, who.rights())
		}
		if told := toldOf(err); err != nil && !errors.Is(told, errLogin) && !errors.Is(told, errUnverified) {
			t.Errorf("a stranger is told %v", told)
		}
	}
	if _, _, _, err := prepare(environment(t, roles+"smtpd_sasl_type = nosuch\n")); err == nil || !strings.Contains(err.Error(), "console_sasl_users: smtpd_sasl_type = nosuch") {
		t.Error(err)
	}
}

// A user of console_user_maps is asked for first, and has what console_operators and console_role_maps give together. Failed
// logins of whatever kind count, and delay all kinds.
func TestKindsOfUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan string, 100)
	w.console.people.others, w.console.people.service = sasl.NewDovecot(dovecot(t, []string{"PLAIN"}, func(s string) string { return s }, asked)), "smtp"
	try := func(user, password string) int {
		status, _, _ := (&browser{w: w}).do("POST", "/login", url.Values{"user": {user}, "password": {password}})
		return status
	}
	if status := try("ann", "secret of ann"); status != http.StatusSeeOther || len(asked) != 0 {
		t.Errorf("%d, asked %d times", status, len(asked))
	}
	w.take()
	if status := try("mallory", "secret of mallory"); status != http.StatusUnauthorized || len(asked) != 1 {
		t.Errorf("a user without a role: %d, asked %d times", status, len(asked))
	}
	if events, _ := w.take(); len(events) != 1 || events[0] != "user=mallory client=127.0.0.1: login failed: console_role_maps has no role for mallory" {
		t.Errorf("%q", events)
	}
	for i := 1; i < freeTries; i++ {
		if status := try([]string{"ann", "mallory"}[i%2], "wrong"); status != http.StatusUnauthorized {
			t.Errorf("%d: %d", i, status)
		}
	}
	before := len(asked)
	for _, user := range []string{"ann", "mallory"} {
		if status := try(user, "secret of "+user); status != http.StatusTooManyRequests {
			t.Errorf("%s: %d", user, status)
		}
	}
	if len(asked) != before {
		t.Error("the server of the users was asked although it was too early")
	}
}
