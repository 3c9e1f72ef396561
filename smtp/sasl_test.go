package smtp

import (
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"hash"
	"testing"
	"time"

	"posthaste/internal/dsn"
)

// The exchanges of RFC 5802 section 5 and RFC 7677 section 3.
func TestScram(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                              string
		hash                              func() hash.Hash
		nonce, first, challenge, last, ok string
	}{
		{"SCRAM-SHA-1", sha1.New, "fyko+d2lbbFgONRv9qkxdawL", "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
			"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
			"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
			"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="},
		{"SCRAM-SHA-256", sha256.New, "rOprNGfwEbeRWgbNEkqO", "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
			"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
			"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
			"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="},
	} {
		c := &scramClient{name: tt.name, hash: tt.hash, user: "user", pass: "pencil", nonce: tt.nonce}
		if _, first, err := c.Start(); string(first) != tt.first || err != nil {
			t.Errorf("%s starts with %q, %v", tt.name, first, err)
		}
		if last, err := c.Next([]byte(tt.challenge)); string(last) != tt.last || err != nil {
			t.Errorf("%s: %q, %v", tt.name, last, err)
		}
		if c.Done() == nil {
			t.Errorf("%s: done before the server has proved anything", tt.name)
		}
		if _, err := c.Next([]byte(tt.ok)); err != nil || c.Done() != nil {
			t.Errorf("%s: the server's proof was not accepted: %v", tt.name, err)
		}
	}
}

func TestScramHostile(t *testing.T) {
	t.Parallel()
	for _, challenge := range []string{"", "r=n", "r=n,s=QSXC,i=1", "r=other,s=QSXC,i=4096", "r=nn,s=QSXC,i=99999999", "r=nn,s=QSXC,i=-1",
		"r=nn,s=,i=4096", "r=nn,s=!,i=4096", "m=x,r=nn,s=QSXC,i=4096", "r=nn,s=QSXC,i=x"} {
		c := &scramClient{name: "SCRAM-SHA-1", hash: sha1.New, user: "u", pass: "p", nonce: "n"}
		if _, _, err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if answer, err := c.Next([]byte(challenge)); err == nil {
			t.Errorf("%q was answered: %q", challenge, answer)
		}
	}
	c := &scramClient{name: "SCRAM-SHA-1", hash: sha1.New, user: "u", pass: "p", nonce: "n"}
	_, _, _ = c.Start()
	if _, err := c.Next([]byte("r=nn,s=QSXC,i=1")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next([]byte("v=AAAA")); err == nil || c.Done() == nil {
		t.Error("a wrong proof was accepted")
	}
}

// TestRefusalBound: of refusals that are over the bound one at a time is forgotten.
func TestRefusalBound(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := &refusals{known: make(map[refusalKey]refusal), life: time.Hour}
	for i := range maxRefusals + 3 {
		r.add("h", fmt.Sprint(i), "p", dsn.S(5, 7, 8), "no", now)
	}
	if len(r.known) != maxRefusals {
		t.Errorf("%d refusals are known, want %d", len(r.known), maxRefusals)
	}
	last := fmt.Sprint(maxRefusals + 2)
	if _, ok := r.find("h", last, "p", now.Add(time.Hour-1)); !ok {
		t.Error("the last refusal is forgotten")
	}
	if _, ok := r.find("h", last, "p", now.Add(time.Hour)); ok {
		t.Error("a refusal counts when its time is over")
	}
}

func TestForbidden(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mechanism, rule string
		want            bool
	}{
		{"PLAIN", "noplaintext", true}, {"LOGIN", "noplaintext", true}, {"XOAUTH2", "noplaintext", true},
		{"CRAM-MD5", "noplaintext", false}, {"SCRAM-SHA-1", "noplaintext", false}, {"PLAIN", "noanonymous", false},
		{"CRAM-MD5", "mutual_auth", true}, {"SCRAM-SHA-256", "mutual_auth", false}, {"CRAM-MD5", "nodictionary", true},
		{"SCRAM-SHA-256", "nodictionary", false}, {"OAUTHBEARER", "nodictionary", false}, {"LOGIN", "nodictionary", true},
		{"SCRAM-SHA-256", "forward_secrecy", true},
	} {
		if got := forbidden(tt.mechanism, []string{tt.rule}); got != tt.want {
			t.Errorf("%s with %s: %v", tt.mechanism, tt.rule, got)
		}
	}
}
