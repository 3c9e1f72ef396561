package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/table"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	search := &table.Search{Delimiters: "+-", OwnerRequest: true, DoubleBounce: "double-bounce"}
	for _, c := range []struct {
		patterns, sender string
		want             bool
	}{
		{"*", "anything", true},
		{"*", "", true},
		{"x *", "a@b", true},
		{"**", "a@b", false},
		{"*@b", "a@b", false},
		{"foo,foo@example.com", "foo", true},
		{"foo,foo@example.com", "FOO@Example.com", true},
		{"foo,foo@example.com", "foo+bar@example.com", true},
		{"foo,foo@example.com", "foo+bar", true},
		{"foo+bar@example.com", "foo+bar@example.com", false},
		{"foo,foo@example.com", "bar@example.com", false},
		{"foo,foo@example.com", "", false},
		{"@example.com", "anyone@example.com", true},
		{"@example.com", "anyone@EXAMPLE.com", true},
		{"@example.com", "anyone@example.org", false},
		{"@example.com", "anyone@sub.example.com", false},
		{"@example.com", "example.com", false},
		{"@", "", false},
		{"@example.com", `odd@example.com@example.org`, false},
		{"owner-list@example.com", "owner-list@example.com", true},
		{"<>", "", true},
		{"<>", "<>", false},
		{"<>", "a@b", false},
		{`"first last","first last"@example.com`, "first last", true},
		{`"first last","first last"@example.com`, "first last@example.com", true},
		{`"first last"@example.com`, "other last@example.com", false},
		{`"a,b"@example.com c`, "c", true},
		{`"a,b"@example.com c`, "a,b@example.com", true},
		{`"a,b"@example.com c`, `b"@example.com`, false},
		{"\t,, ,x", "x", true},
		{`x\`, "x", false},
	} {
		if got := allowed(c.patterns, c.sender, "<>", search); got != c.want {
			t.Errorf("%q for %q: %v", c.sender, c.patterns, got)
		}
	}
	if !allowed("nobody", "", "NOBODY", search) || allowed("<>", "", "nobody", search) {
		t.Error("the null sender is not under its key")
	}
}

// TestSender: what the program says and does for the user that runs the test.
func TestSender(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		main, sender string
		status       int
		out          string
	}{
		{"", "a@b", 0, ""},
		{"local_login_sender_maps = static:*\n", "", 0, ""},
		{"local_login_sender_maps = static:{a@b <>}\n", "a+x@b", 0, ""},
		{"local_login_sender_maps = static:{a@b <>}\n", "", 0, ""},
		{"local_login_sender_maps = static:a@b\n", "", 75, "not authorized to use sender=''\n"},
		{"local_login_sender_maps = static:a@b\n", "a b@c", 75, "not authorized to use sender='a b@c'\n"},
		{"local_login_sender_maps =\n", "a@b", 75, "not authorized to use sender='a@b'\n"},
		{"local_login_sender_maps = inline:{no-such-login=*}\n", "a@b", 75, "not authorized to use sender='a@b'\n"},
		{"local_login_sender_maps = inline:{no-such-login=*}, fail:now\n", "a@b", 75,
			"local_login_sender_maps table lookup error for 'inline:{no-such-login=*}, fail:now'\n"},
		{"local_login_sender_maps = static:{x none}\nempty_address_local_login_sender_maps_lookup_key = none\n", "", 0, ""},
		{"empty_address_local_login_sender_maps_lookup_key =\n", "a@b", 78, ""},
	} {
		dir := t.TempDir()
		for _, d := range []string{"maildrop", "public"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		main := "queue_directory = " + dir + "\nalternate_config_directories = " + dir + "\nrecipient_delimiter = +\n" + c.main
		if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(main), 0o644); err != nil {
			t.Fatal(err)
		}
		var message, out, errs bytes.Buffer
		h := &maildrop.Header{Time: time.Now(), Sender: c.sender, Recipients: []mail.Recipient{{Address: "to@x.test"}}}
		if err := maildrop.Write(&message, h, strings.NewReader("Subject: x\n\nx\n")); err != nil {
			t.Fatal(err)
		}
		status := run([]string{"-c", dir}, &message, &out, &errs)
		if status != c.status || out.String() != c.out {
			t.Errorf("%q, %s: status %d, %q, %q", c.sender, c.main, status, &out, &errs)
		}
		files, err := os.ReadDir(filepath.Join(dir, "maildrop"))
		if err != nil || (len(files) == 1) != (c.status == 0) {
			t.Errorf("%q, %s: %d files, %v", c.sender, c.main, len(files), err)
		}
	}
}

// TestLogin: who has no name is looked up by number.
func TestLogin(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("local_login_sender_maps = inline:{{uid:2147480001 = a@b}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := mayUse(cfg, "uid:2147480001", "a@b", func(text string) { t.Error(text) }); err != nil {
		t.Error(err)
	}
	if err := mayUse(cfg, "uid:2147480002", "a@b", func(text string) { t.Error(text) }); err == nil {
		t.Error("another user may use it")
	}
}
