package sasl

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/table"
)

// The password of each is "secret", of the first "password". The first is a test vector of the
// reference implementation of argon2, two are of OpenSSL, the others of Dovecot's doveadm pw.
var foreign = []string{
	"$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
	"$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
	"$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA",
	"{SHA512-CRYPT}$6$C66IGRCVPQpAXmNo$c2mECO/Ku4F7VCkwsyaxxvPVT2vYv.wwtZ5w84UB55by4AtgwD2WKOvzkVSanAzKHdFE8oNddnUTDY8Wr4Rll1",
	"{CRYPT}$6$C66IGRCVPQpAXmNo$c2mECO/Ku4F7VCkwsyaxxvPVT2vYv.wwtZ5w84UB55by4AtgwD2WKOvzkVSanAzKHdFE8oNddnUTDY8Wr4Rll1",
	"{ARGON2ID}$argon2id$v=19$m=65536,t=3,p=1$w01KiZUhrJtWpSEnB+IPgw$1EaPpfoRxDW1cZrb96M57xPv7bYn50u1h7mbSuIo7ss",
	"{BLF-CRYPT}$2y$05$PLHX.bV6TGYpi..Z/74rS.on4fdT.p.bFaWPrn5/yZnnArJJSPANC",
	"{SSHA256}0K8sYzYQrp6+oDYuc1lbbUgif8jKauNad67cLAw2Ch2nF1GX",
}

// Hashes of other programs are verified, and ours too.
func TestHashes(t *testing.T) {
	t.Parallel()
	all := append([]string(nil), foreign...)
	for _, scheme := range Schemes() {
		h, err := NewHash(scheme, "secret")
		if err != nil || strings.ContainsAny(h, " \t:") {
			t.Fatalf("%s: %q %v", scheme, h, err)
		}
		again, err := NewHash(scheme, "secret")
		if err != nil || again == h {
			t.Errorf("%s: two hashes are the same: %s %v", scheme, h, err)
		}
		all = append(all, h)
	}
	all = append(all, fast(t, "secret").String(), newTokenHash("secret"))
	for i, text := range all {
		v, err := parseHash(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		good := "secret"
		if i == 0 {
			good = "password"
		}
		if !v.matches(good) || v.matches(good+"s") || v.matches("") || v.cheap() != strings.HasPrefix(text, "{SSHA256}") {
			t.Errorf("%s: wrong verdict on a password", text)
		}
	}
	for _, tt := range []struct{ scheme, password, want string }{
		{"md5", "x", "expected one of argon2id, bcrypt, sha512-crypt"}, {"argon2id", "", "1 to 1024"}, {"argon2id", strings.Repeat("x", 1025), "1 to 1024"},
		{"argon2id", "a\x00b", "RFC 4013"}, {"bcrypt", strings.Repeat("x", 73), "72 octets"},
	} {
		if _, err := NewHash(tt.scheme, tt.password); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %.10q: %v, expected %q", tt.scheme, tt.password, err, tt.want)
		}
	}
}

// What cannot be verified, or would cost too much, is refused when it is read.
func TestBadHashes(t *testing.T) {
	t.Parallel()
	argon := func(s string) string {
		return "$argon2id$v=19$" + s + "$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	}
	for _, text := range []string{
		"", "secret", "{PLAIN}secret", "{", "{ARGON2ID", "$1$salt$x", "{CRYPT}secret", "{SSHA256}", "{SSHA256}AAAA", "{SHA512-CRYPT}" + foreign[2], "{BLF-CRYPT}" + foreign[0],
		argon("m=131073,t=2,p=1"), argon("m=1024,t=17,p=1"), argon("m=1024,t=2,p=17"), argon("m=1024,t=0,p=1"), argon("t=2,m=1024,p=1"), argon("m=1024,t=2"), argon("m=1024,t=2,p=1,k=x"),
		"$argon2id$v=16$m=1024,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc", "$argon2id$v=19$m=1024,t=2,p=1$c29tZXNhbHQ$AAAA", "$argon2id$v=19$m=1024,t=2,p=1$AA$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$2y$15$PLHX.bV6TGYpi..Z/74rS.on4fdT.p.bFaWPrn5/yZnnArJJSPANC", "$2y$05$short",
		"$6$rounds=1000001$saltsalt$" + foreign[1][12:], "$6$rounds=999$saltsalt$" + foreign[1][12:], "$6$rounds=x$saltsalt$" + foreign[1][12:], "$6$saltsaltsaltsalts$" + foreign[1][12:], "$6$saltsalt$short", "$6$", "$5$rounds=5000",
	} {
		if v, err := parseHash(text); err == nil {
			t.Errorf("%s: %v, expected an error", text, v)
		}
	}
}

// An account is read from the words of a file and from the rows of a database.
func TestParseAccount(t *testing.T) {
	t.Parallel()
	main, app, tok := foreign[5], foreign[6], foreign[7]
	for _, text := range []string{
		main + " phone:" + app + " tablet:" + tok + " disabled",
		"  disabled   phone:" + app + "\t" + main + " tablet:" + tok,
		main + ",phone:" + app + ",tablet:" + tok + ",disabled",
	} {
		a, err := ParseAccount(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want := main + " phone:" + app + " tablet:" + tok + " disabled"; a.String() != want {
			t.Errorf("%s: %s", text, a)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{main + " " + app, "two passwords without a name"}, {"phone:" + app + " phone:" + tok, "two passwords phone"}, {tok, "fast hash"},
		{"hello", "expected a password hash"}, {"phone:hello", "expected a password hash"},
		{"a:" + app + " b:" + app + " c:" + app + " d:" + app + " e:" + app, "5 slow hashes"},
	} {
		if _, err := ParseAccount(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, expected %q", tt.text, err, tt.want)
		}
	}
	many := ""
	for i := range maxAppPasswords + 1 {
		many += fmt.Sprintf("app%d:%s ", i, tok)
	}
	if _, err := ParseAccount(many); err == nil || !strings.Contains(err.Error(), "33 application passwords") {
		t.Errorf("%v", err)
	}
}

func accounts(t *testing.T, failures int) *Accounts {
	password, hash := NewAppPassword()
	if len(password) != 23 {
		t.Errorf("%q", password)
	}
	cheap := fast(t, "secret").String()
	spec := fmt.Sprintf("inline:{ {joe=%s phone:%s}, {ann@realm=%s}, {gone=%s disabled}, {broken=hello}, {app=phone:%s}, {empty=disabled} }", cheap, hash, cheap, cheap, newTokenHash("abc"))
	a := NewAccounts(AccountOptions{Maps: table.OpenMaps("account_maps", []string{spec}, table.Options{}), Realm: "realm", Failures: failures, FailureTime: time.Minute,
		Now: time.Now})
	t.Cleanup(a.Close)
	a.decoy.Store(a.decoyLike(scramHash{fast(t, "other")}))
	if err := (accountsOf{a, "192.0.2.1", false}).check(t.Context(), "joe", password); err != nil {
		t.Errorf("the application password: %v", err)
	}
	return a
}

// Who logs in with what, and with what words others are kept out.
func TestAccounts(t *testing.T) {
	t.Parallel()
	a := accounts(t, 0)
	for _, tt := range []struct {
		user, password, want string
		failure              bool // the client's, not ours
	}{
		{"joe", "secret", "", false}, {"Joe", "secret", "", false}, {"ann", "secret", "", false}, {"ann@realm", "secret", "", false}, {"app", "abc", "", false},
		{"joe", "wrong", "authentication failure", true}, {"nobody", "secret", "authentication failure", true}, {"app", "secret", "authentication failure", true},
		{"ann@other", "secret", "authentication failure", true}, {"joe", strings.Repeat("x", maxPassword+1), "authentication failure", true},
		{"gone", "secret", "the account is disabled", true}, {"gone", "wrong", "authentication failure", true}, {"broken", "x", "account broken: expected", false},
	} {
		err := (accountsOf{a, "192.0.2.1", false}).check(t.Context(), tt.user, tt.password)
		var f *Failure
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || errors.As(err, &f) != tt.failure) {
			t.Errorf("%s %.10s: %v, expected %q", tt.user, tt.password, err, tt.want)
		}
	}
	for _, mech := range []string{"PLAIN", "LOGIN"} {
		x, err := a.Start(t.Context(), mech, Client{TLS: &tls.ConnectionState{}, RemoteAddr: "192.0.2.1"})
		if err != nil {
			t.Fatal(err)
		}
		responses := [][]byte{[]byte("\x00joe\x00secret")}
		if mech == "LOGIN" {
			responses = [][]byte{nil, []byte("joe"), []byte("secret")}
		}
		done := false
		for _, r := range responses {
			if _, done, err = x.Next(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if !done || x.Username() != "joe" {
			t.Errorf("%s: %v %s", mech, done, x.Username())
		}
	}
	for _, mech := range []string{"SCRAM-SHA-256", "OAUTHBEARER", ""} {
		if _, err := a.Start(t.Context(), mech, Client{}); !errors.Is(err, ErrMechanism) {
			t.Errorf("%s: %v", mech, err)
		}
	}
}

// An unknown user is compared with a hash of the kind and cost of the others'.
func TestAccountDecoys(t *testing.T) {
	t.Parallel()
	a := accounts(t, 0)
	for _, text := range foreign[:7] {
		v, err := parseHash(text)
		if err != nil {
			t.Fatal(err)
		}
		d := *a.decoyLike(v)
		if fmt.Sprintf("%T", d) != fmt.Sprintf("%T", v) || d.matches("secret") || d.matches("password") {
			t.Errorf("%s: %v", text, d)
		}
		switch h := v.(type) {
		case argonHash:
			if e := d.(argonHash); e.memory != h.memory || e.time != h.time || len(e.hash) != len(h.hash) {
				t.Errorf("%s: %v", text, e)
			}
		case bcryptHash:
			if e := d.(bcryptHash); e[:29] != h[:29] || len(e) != len(h) {
				t.Errorf("%s: %v", text, e)
			}
		case shaCrypt:
			if e := d.(shaCrypt); e.rounds != h.rounds || len(e.hash) != len(h.hash) {
				t.Errorf("%s: %v", text, e)
			}
		}
	}
	// An unknown user, and one without any password, are compared with it.
	var asked counting
	var v verifier = &asked
	a.decoy.Store(&v)
	for n, user := range []string{"nobody", "empty"} {
		if err := (accountsOf{a, "", false}).check(t.Context(), user, "wrong"); err == nil || int(asked) != n+1 {
			t.Errorf("%s: %v, %d comparisons", user, err, asked)
		}
	}
}

// counting counts how often it is asked.
type counting int

func (c *counting) matches(string) bool { *c++; return false }
func (c *counting) cheap() bool         { return false }

// Guessing is stopped, and neither locks out the user nor others.
func TestFailures(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	f := newFailures(2, time.Minute)
	try := func(account, client string, good bool) bool {
		a, ok := f.begin(account, client, client == "webmail", now)
		if ok && good {
			a.succeed(now)
		}
		return ok
	}
	if !try("joe", "home", true) {
		t.Fatal("the first login is refused")
	}
	for range 2 {
		if !try("joe", "a", false) {
			t.Error("refused too early")
		}
	}
	if try("joe", "a", true) {
		t.Error("a third attempt from the same client passes")
	}
	for i := range 30 { // guesses from everywhere
		try("joe", fmt.Sprint(i), false)
	}
	if try("joe", "elsewhere", false) {
		t.Error("an account can be tried from everywhere without end")
	}
	if !try("joe", "home", true) {
		t.Error("strangers lock a user out")
	}
	for i := range 30 {
		try(fmt.Sprint("user", i), "b", false)
	}
	if try("ann", "b", false) {
		t.Error("a client can try all accounts without end")
	}
	for i := range 30 {
		try(fmt.Sprint("user", i), "webmail", false)
	}
	if !try("ann", "webmail", true) {
		t.Error("users of a shared client are held responsible for each other")
	}
	now = now.Add(time.Minute)
	if !try("joe", "a", false) || !try("ann", "b", false) {
		t.Error("refused for ever")
	}
	// An attempt of which nothing is known is not held against anybody.
	for range 5 {
		a, ok := f.begin("eve", "c", false, now)
		if !ok {
			t.Fatal("withdrawn attempts count")
		}
		a.withdraw(now)
	}
	// Many at once do not pass.
	n := 0
	for range 5 {
		if _, ok := f.begin("pat", "d", false, now); ok {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d attempts at once", n)
	}
	if len(f.counts) != f.order.Len() || len(f.counts) > maxFailures {
		t.Errorf("%d counts, %d in order", len(f.counts), f.order.Len())
	}
}

// The number of counts is bounded.
func TestFailuresBounded(t *testing.T) {
	t.Parallel()
	f := newFailures(1, time.Minute)
	now := time.Unix(1e9, 0)
	for i := range maxFailures / 2 {
		f.begin(fmt.Sprint(i), fmt.Sprint("c", i), false, now)
	}
	if len(f.counts) != maxFailures || f.order.Len() != maxFailures {
		t.Errorf("%d %d", len(f.counts), f.order.Len())
	}
}

// After too many failures even the right password is not looked at, and the client hears of a
// temporary error.
func TestAccountFailures(t *testing.T) {
	t.Parallel()
	a := accounts(t, 3)
	stranger := accountsOf{a, "2001:db8::1", false}
	for range 3 {
		if err := stranger.check(t.Context(), "ann", "wrong"); err != errCredentials {
			t.Error(err)
		}
	}
	var f *Failure
	if err := (accountsOf{a, "2001:db8::2", false}).check(t.Context(), "ANN@realm", "secret"); err == nil || errors.As(err, &f) || !strings.Contains(err.Error(), "too many failed logins") {
		t.Errorf("%v", err)
	}
	if err := (accountsOf{a, "2001:db8:0:1::1", false}).check(t.Context(), "ann", "secret"); err != nil {
		t.Error(err)
	}
}

func FuzzParseAccount(f *testing.F) {
	for _, text := range foreign {
		f.Add(text)
		f.Add("phone:" + text + " disabled," + text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAccount(text)
		if err != nil {
			return
		}
		again, err := ParseAccount(a.String())
		if err != nil || again.String() != a.String() {
			t.Errorf("%q is read as %q, and that as %v, %v", text, a, again, err)
		}
	})
}
