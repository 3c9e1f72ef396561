package bounce

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const aTemplate = `# a comment
failure_template = <<XX
Subject: Nope
charset: iso-8859-1

On $myhostname, after ${maximal_queue_lifetime_days} days ($delay_warning_time_minutes min). $$5

end
XX

verify_template = <<EOF
Charset: utf-8

Blå
EOF
`

func TestTemplates(t *testing.T) {
	t.Parallel()
	set, err := parseTemplates("b.cf", aTemplate)
	if err != nil {
		t.Fatal(err)
	}
	out, err := expandTemplates(testConfig(t, ""), set)
	if err != nil {
		t.Fatal(err)
	}
	f := out[failureTemplate]
	if f.subject != "Nope" || f.charset != "iso-8859-1" || f.from != defaults[failureTemplate].from {
		t.Errorf("header %+v", f)
	}
	if want := "On mx.example.org, after 5 days (240 min). $5\n\nend\n"; f.text != want {
		t.Errorf("text %q, want %q", f.text, want)
	}
	if out[verifyTemplate].text != "Blå\n" || out[delayTemplate].subject != defaults[delayTemplate].subject {
		t.Errorf("%+v", out)
	}
}

func TestTemplateErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"hello", "b.cf:1: expected NAME = <<WORD"},
		{"\nx_template = <<EOF\n\nEOF\n", "b.cf:2: unknown template"},
		{"failure_template = <<EOF\n\nno end\n", "b.cf:1: failure_template has no end"},
		{"failure_template = <<'EOF'\n\nEOF\n", "b.cf:1: expected"},
		{"failure_template = <<EOF\nSubject: x\nWhat\n\nEOF\n", "b.cf:3: failure_template: expected a header"},
		{"failure_template = <<EOF\nX-A: x\n\nEOF\n", "b.cf:2: failure_template: unknown header"},
		{"failure_template = <<EOF\nSubject: blå\n\nEOF\n", "b.cf:2: failure_template: header Subject"},
		{"failure_template = <<EOF\nSubject: x\nEOF\n", "no empty line"},
	} {
		_, err := parseTemplates("b.cf", tt.text)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want %q", tt.text, err, tt.want)
		}
	}
	set, err := parseTemplates("b.cf", "failure_template = <<EOF\n\nblå\nEOF\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := expandTemplates(testConfig(t, ""), set); err == nil {
		t.Error("text over 127 with charset us-ascii was taken")
	}
}

// TestBadTemplateFile: a file that cannot be used must not stop notices.
func TestBadTemplateFile(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "rubbish"} {
		file := filepath.Join(t.TempDir(), "bounce.cf")
		if content != "" {
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var warnings []string
		c := NewComposer(testConfig(t, "bounce_template_file = "+file), func(f string, a ...any) {
			warnings = append(warnings, fmt.Sprintf(f, a...))
		})
		if len(warnings) != 1 || !strings.Contains(warnings[0], file) {
			t.Errorf("warnings %q", warnings)
		}
		if c.templates[failureTemplate].subject != defaults[failureTemplate].subject {
			t.Error("built-in template not used")
		}
	}
}

// TestWriteTemplates: what "postconf -t" prints reads back as the same.
func TestWriteTemplates(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, "")
	file := filepath.Join(t.TempDir(), "bounce.cf")
	if err := os.WriteFile(file, []byte(aTemplate), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", file} {
		var b strings.Builder
		if err := WriteTemplates(&b, cfg, name, false); err != nil {
			t.Fatal(err)
		}
		want, err := readTemplates(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseTemplates("again", b.String())
		for i := range want { // what has been written out is the administrator's
			want[i].ownFrom, got[i].ownFrom = true, true
		}
		if err != nil || got != want {
			t.Errorf("%v\n%+v\n%+v", err, got, want)
		}
		b.Reset()
		if err := WriteTemplates(&b, cfg, name, true); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "expanded_failure_text = <<EOF\n") || strings.Contains(b.String(), "$myhostname") {
			t.Errorf("%s", b.String())
		}
	}
}

func TestFromHeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from     string
		standard bool
		want     string
	}{
		{"MAILER-DAEMON (Mail Delivery System)", true, "Mail Delivery System <MAILER-DAEMON>"},
		{"MAILER-DAEMON (Mail Delivery System)", false, "MAILER-DAEMON (Mail Delivery System)"},
		{"Me <a@b>", true, "Me <a@b>"},
		{"a@b (x.y)", true, `"x.y" <a@b>`},
	} {
		if got := fromHeader(tt.from, tt.standard); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.from, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	word := strings.Repeat("w", 100)
	for _, tt := range []struct{ text, want string }{
		{"", "\r\n"},
		{"short", "short\r\n"},
		{strings.Repeat("ab ", 30), strings.TrimSpace(strings.Repeat("ab ", 26)) + "\r\n    ab ab ab ab\r\n"},
		{"a " + word + " b", "a\r\n    " + word + "\r\n    b\r\n"},
		{strings.Repeat("x", 1000), strings.Repeat("x", 900) + "\r\n    " + strings.Repeat("x", 100) + "\r\n"},
	} {
		if got := string(appendWrapped(nil, tt.text)); got != tt.want {
			t.Errorf("%.20q: %q, want %q", tt.text, got, tt.want)
		}
	}
}

func FuzzTemplates(f *testing.F) {
	f.Add(aTemplate)
	f.Fuzz(func(t *testing.T, text string) {
		set, err := parseTemplates("f", text)
		if err != nil && set != defaults {
			t.Error("a broken file has changed the templates")
		}
	})
}
