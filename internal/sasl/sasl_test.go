package sasl

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/table"
)

// fast is a secret that costs little to verify.
func fast(t *testing.T, password string) Secret {
	s, err := derive(password, []byte("0123456789abcdef"), minIterations)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func users(t *testing.T) *Users {
	spec := fmt.Sprintf("inline:{ {joe=%s}, {ann@realm=%s}, {broken=hello} }", fast(t, "secret"), fast(t, "pass,word="))
	u := NewUsers(table.OpenMaps("users", []string{spec}, table.Options{}), "realm", nil, nil)
	t.Cleanup(u.Close)
	u.decoys.iterations = minIterations
	return u
}

func TestSecret(t *testing.T) {
	t.Parallel()
	s := fast(t, "secret")
	p, err := ParseSecret(s.String())
	if err != nil || p.String() != s.String() {
		t.Fatalf("%v, %v", p, err)
	}
	if !p.Matches("secret") || p.Matches("Secret") || p.Matches("") || p.Matches(strings.Repeat("x", maxPassword+1)) {
		t.Error("wrong verdict on a password")
	}
	// RFC 7677 section 3.
	salt, _ := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	rfc, err := derive("pencil", salt, 4096)
	if err != nil {
		t.Fatal(err)
	}
	msg := "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	if got := base64.StdEncoding.EncodeToString(mac(rfc.ServerKey, msg)); got != "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=" {
		t.Errorf("server signature %s", got)
	}
	for _, bad := range []string{"", "secret", "SCRAM-SHA-256$4096:x$y:z", "SCRAM-SHA-1" + s.String()[13:],
		"SCRAM-SHA-256$1:MDEy$" + strings.Split(s.String(), "$")[2], strings.Replace(s.String(), ":", "", 1)} {
		if _, err := ParseSecret(bad); err == nil {
			t.Errorf("%q is taken for a secret", bad)
		}
	}
	if _, err := NewSecret(""); err == nil {
		t.Error("an empty password is accepted")
	}
}

// talk runs an exchange with the client's answers given as text.
func talk(t *testing.T, b Backend, mech string, answers ...[]byte) (Exchange, error) {
	x, err := b.Start(t.Context(), mech, Client{Service: "smtp"})
	if err != nil {
		return nil, err
	}
	defer x.Close()
	for _, a := range answers {
		_, done, err := x.Next(t.Context(), a)
		if err != nil {
			return x, err
		}
		if done {
			return x, nil
		}
	}
	return x, errors.New("not done")
}

func TestPlainAndLogin(t *testing.T) {
	t.Parallel()
	u := users(t)
	for _, tc := range []struct {
		mech    string
		answers []string
		user    string
		err     error // nil: let in
	}{
		{"PLAIN", []string{"\x00joe\x00secret"}, "joe", nil},
		{"PLAIN", []string{"joe\x00joe\x00secret"}, "joe", nil},
		{"PLAIN", []string{"\x00ann\x00pass,word="}, "ann", nil},
		{"PLAIN", []string{"\x00joe\x00wrong"}, "joe", errCredentials},
		{"PLAIN", []string{"\x00nobody\x00secret"}, "nobody", errCredentials},
		{"PLAIN", []string{"ann\x00joe\x00secret"}, "joe", &Failure{"not authorized to act as another user"}},
		{"PLAIN", []string{"joe\x00secret"}, "", ErrMalformed},
		{"PLAIN", []string{""}, "", ErrMalformed},
		{"PLAIN", []string{"\x00joe\x00"}, "", ErrMalformed},
		{"PLAIN", []string{"\x00joe\x00secret\x00x"}, "", ErrMalformed},
		{"LOGIN", []string{"joe", "secret"}, "joe", nil},
		{"LOGIN", []string{"joe", "wrong"}, "joe", errCredentials},
		{"LOGIN", []string{"", "x"}, "", ErrMalformed},
		{"PLAIN", []string{"\x00broken\x00x"}, "broken", errors.New("user broken: expected SCRAM-SHA-256")},
	} {
		for _, initial := range []bool{false, true} {
			var answers [][]byte
			if !initial {
				answers = append(answers, nil)
			}
			for _, a := range tc.answers {
				answers = append(answers, []byte(a))
			}
			x, err := talk(t, u, tc.mech, answers...)
			if (err == nil) != (tc.err == nil) || err != nil && !strings.HasPrefix(err.Error(), tc.err.Error()) {
				t.Errorf("%s %q: %v, want %v", tc.mech, tc.answers, err, tc.err)
			}
			if x != nil && x.Username() != tc.user {
				t.Errorf("%s %q: user %q", tc.mech, tc.answers, x.Username())
			}
		}
	}
	if _, err := u.Start(t.Context(), "CRAM-MD5", Client{}); err != ErrMechanism {
		t.Errorf("CRAM-MD5: %v", err)
	}
	if _, err := u.Start(t.Context(), "SCRAM-SHA-256-PLUS", Client{}); err != ErrMechanism {
		t.Errorf("-PLUS without TLS: %v", err)
	}
}

// scramClient is the other side, RFC 5802 section 3, written on its own.
func scramClient(t *testing.T, u *Users, user, password, gs2 string, spoil func(final string) string) error {
	return boundClient(t, u, Client{}, "SCRAM-SHA-256", user, password, gs2, nil, spoil)
}

// boundClient is one that adds what the channel is bound by.
func boundClient(t *testing.T, u *Users, c Client, mech, user, password, gs2 string, binding []byte, spoil func(final string) string) error {
	x, err := u.Start(t.Context(), mech, c)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.NewReplacer("=", "=3D", ",", "=2C").Replace(user)
	bare := "n=" + name + ",r=clientnonce"
	challenge, _, err := x.Next(t.Context(), []byte(gs2+bare))
	if err != nil {
		return err
	}
	attrs := map[string]string{}
	for _, a := range strings.Split(string(challenge), ",") {
		attrs[a[:1]] = a[2:]
	}
	salt, err := base64.StdEncoding.DecodeString(attrs["s"])
	if err != nil || !strings.HasPrefix(attrs["r"], "clientnonce") || len(attrs["r"]) < 30 {
		t.Fatalf("challenge %q", challenge)
	}
	n, _ := strconv.Atoi(attrs["i"])
	salted, _ := pbkdf2.Key(sha256.New, password, salt, n, 32)
	clientKey := mac(salted, "Client Key")
	stored := sha256.Sum256(clientKey)
	without := "c=" + base64.StdEncoding.EncodeToString(append([]byte(gs2), binding...)) + ",r=" + attrs["r"]
	message := bare + "," + string(challenge) + "," + without
	sig := mac(stored[:], message)
	for i := range sig {
		sig[i] ^= clientKey[i]
	}
	final := without + ",p=" + base64.StdEncoding.EncodeToString(sig)
	if spoil != nil {
		final = spoil(final)
	}
	answer, done, err := x.Next(t.Context(), []byte(final))
	if err != nil {
		return err
	}
	want := "v=" + base64.StdEncoding.EncodeToString(mac(mac(salted, "Server Key"), message))
	if done || !hmac.Equal(answer, []byte(want)) {
		t.Errorf("server proof %q, want %q", answer, want)
	}
	_, done, err = x.Next(t.Context(), []byte{})
	if !done && err == nil {
		t.Error("not done")
	}
	if err == nil && x.Username() != user {
		t.Errorf("user %q", x.Username())
	}
	return err
}

func TestSCRAM(t *testing.T) {
	t.Parallel()
	u := users(t)
	for _, tc := range []struct {
		user, password, gs2 string
		spoil               func(string) string
		ok                  bool
	}{
		{"joe", "secret", "n,,", nil, true},
		{"joe", "secret", "y,,", nil, true},
		{"joe", "secret", "n,a=joe,", nil, true},
		{"ann", "pass,word=", "n,,", nil, true},
		{"joe", "wrong", "n,,", nil, false},
		{"nobody", "secret", "n,,", nil, false},
		{"nobody", "x", "n,,", nil, false},
		{"joe", "secret", "n,a=ann,", nil, false},
		{"joe", "secret", "p=tls-exporter,,", nil, false},
		{"joe", "secret", "x,,", nil, false},
		{"joe", "secret", "n,,", func(f string) string { return strings.Replace(f, "c=biws", "c=eSws", 1) }, false},
		{"joe", "secret", "n,,", func(f string) string { return strings.Replace(f, "r=clientnonce", "r=clientnoncf", 1) }, false},
		{"joe", "secret", "n,,", func(string) string { return "" }, false},
		{"joe", "secret", "n,,", func(f string) string { return f + "x" }, false},
	} {
		if err := scramClient(t, u, tc.user, tc.password, tc.gs2, tc.spoil); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// Whatever a client sends, nothing gives way.
func FuzzExchange(f *testing.F) {
	f.Add("PLAIN", []byte("\x00joe\x00secret"), []byte(""))
	f.Add("LOGIN", []byte("joe"), []byte("x"))
	f.Add("SCRAM-SHA-256", []byte("n,,n=joe,r=x"), []byte("c=biws,r=x,p=AA=="))
	secret, err := derive("other", []byte("salt"), minIterations)
	if err != nil {
		f.Fatal(err)
	}
	u := NewUsers(table.OpenMaps("users", []string{"static:" + secret.String()}, table.Options{}), "", nil, nil)
	f.Fuzz(func(t *testing.T, mech string, a, b []byte) {
		x, err := u.Start(context.Background(), mech, Client{})
		if err != nil {
			return
		}
		for _, m := range [][]byte{a, b, {}} {
			_, done, err := x.Next(context.Background(), m)
			if done {
				t.Fatalf("let in by %q %q", a, b)
			}
			if err != nil {
				return
			}
		}
	})
}

func TestPasswd(t *testing.T) {
	t.Parallel()
	run := func(stdin string, args ...string) (int, string, string) {
		var out, errs strings.Builder
		code := Passwd(args, strings.NewReader(stdin), &out, &errs)
		return code, out.String(), errs.String()
	}
	code, out, _ := run("secret\n", "joe")
	user, text, _ := strings.Cut(strings.TrimSpace(out), " ")
	s, err := ParseSecret(text)
	if code != 0 || user != "joe" || err != nil || !s.Matches("secret") {
		t.Errorf("passwd joe: %d %q %v", code, out, err)
	}
	if code, out, _ := run("# users\n"+out, "-c"); code != 0 || out != "1 entries are well-formed\n" {
		t.Errorf("passwd -c: %d %q", code, out)
	}
	if code, _, errs := run("joe secret\n", "-c"); code != 1 || !strings.Contains(errs, "line 1: user joe") {
		t.Errorf("passwd -c of a password: %d %q", code, errs)
	}
	for _, args := range [][]string{{"-x"}, {"a", "b"}, {"a b"}} {
		if code, _, errs := run("x\n", args...); code != 1 || !strings.Contains(errs, "usage") {
			t.Errorf("passwd %q: %d", args, code)
		}
	}
	if code, _, _ := run("\n"); code != 1 {
		t.Error("an empty password is hashed")
	}
}

// fakeDovecot answers as the protocol has it.
func fakeDovecot(t *testing.T, answer func(words []string) []string) string {
	path := filepath.Join(t.TempDir(), "auth")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				fmt.Fprint(c, "VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nMECH\tXOAUTH2\nSPID\t1\nCUID\t2\nCOOKIE\tx\nDONE\n")
				sc := bufio.NewScanner(c)
				for sc.Scan() {
					for _, line := range answer(strings.Split(sc.Text(), "\t")) {
						fmt.Fprintln(c, line)
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return path
}

func TestDovecot(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []string
	path := fakeDovecot(t, func(w []string) []string {
		mu.Lock()
		seen = append(seen, strings.Join(w, " "))
		mu.Unlock()
		switch w[0] {
		case "AUTH":
			if !strings.HasPrefix(w[len(w)-1], "resp=") {
				return []string{"CONT\t1\t"}
			}
			switch w[len(w)-1] {
			case "resp=Z29vZA==":
				return []string{"NEWS\t7", "OK\t1\tuser=joe"}
			case "resp=dGVtcA==":
				return []string{"FAIL\t1\tuser=joe\ttemp"}
			}
			return []string{"FAIL\t1\tuser=joe\treason=no way"}
		case "CONT":
			return []string{"OK\t1\tuser=ann"}
		}
		return nil
	})
	d := NewDovecot(path)
	mechs, err := d.Mechanisms(t.Context(), Client{})
	if err != nil || len(mechs) != 2 || mechs[0] != (Mechanism{"PLAIN", Plaintext}) || mechs[1].Name != "XOAUTH2" {
		t.Fatalf("%v, %v", mechs, err)
	}
	if x, err := talk(t, d, "PLAIN", []byte("good")); err != nil || x.Username() != "joe" {
		t.Errorf("good: %v", err)
	}
	if x, err := talk(t, d, "XOAUTH2", nil, []byte("token")); err != nil || x.Username() != "ann" {
		t.Errorf("with a challenge: %v", err)
	}
	var f *Failure
	if x, err := talk(t, d, "PLAIN", []byte("bad")); !errors.As(err, &f) || f.Reason != "no way" || x.Username() != "joe" {
		t.Errorf("bad: %v", err)
	}
	if _, err := talk(t, d, "PLAIN", []byte("temp")); err == nil || errors.As(err, &f) {
		t.Errorf("temp: %v", err)
	}
	if _, err := talk(t, d, "GSSAPI", []byte("x")); err != ErrMechanism {
		t.Errorf("GSSAPI: %v", err)
	}
	if _, err := talk(t, NewDovecot(path+"x"), "PLAIN", []byte("x")); err == nil {
		t.Error("a server that is not there lets in")
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(strings.Join(seen, "\n"), "AUTH 1 PLAIN service=smtp nologin lip= rip= lport= rport= resp=Z29vZA==") {
		t.Errorf("requests: %q", seen)
	}
}

// When all that may be are hashing, a password waits for its turn, and no longer
// than its client does.
func TestHashingBounded(t *testing.T) {
	t.Parallel()
	secret, err := derive("secret", []byte("0123456789abcdef"), minIterations)
	if err != nil {
		t.Fatal(err)
	}
	u := NewUsers(table.OpenMaps("users", []string{"static:" + secret.String()}, table.Options{}), "", nil, nil)
	defer u.Close()
	for range cap(u.gate) {
		u.gate <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var f *Failure
	if err := u.check(ctx, "joe", "secret"); !errors.Is(err, context.Canceled) || errors.As(err, &f) {
		t.Errorf("%v", err)
	}
	<-u.gate
	if err := u.check(t.Context(), "joe", "secret"); err != nil {
		t.Error(err)
	}
	if err := u.check(t.Context(), "joe", "wrong"); !errors.As(err, &f) || len(u.gate) != cap(u.gate)-1 {
		t.Errorf("%v, %d of %d", err, len(u.gate), cap(u.gate))
	}
}
