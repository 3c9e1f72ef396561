package dsn

import (
	"testing"

	"pgregory.net/rapid"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Status{"2.1.5": S(2, 1, 5), "4.0.0": S(4, 0, 0), "5.999.123": S(5, 999, 123)} {
		got, err := ParseStatus(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "1.1.1", "3.0.0", "5.1", "5.1.", "5..1", "5.1.1234", "5.1000.1", "5.1.1x", "x5.1.1", "5.1.1 text"} {
		if got, err := ParseStatus(bad); err == nil {
			t.Errorf("%q is taken for %v", bad, got)
		}
	}
	if s, rest, ok := CutStatus("4.4.1  connection refused"); !ok || s != S(4, 4, 1) || rest != "connection refused" {
		t.Errorf("cut: %v %q %v", s, rest, ok)
	}
	if _, rest, ok := CutStatus("4.4.1x"); ok || rest != "4.4.1x" {
		t.Errorf("cut: %q %v", rest, ok)
	}
	if (Status{}).String() != "" || !(Status{}).IsZero() {
		t.Error("the zero status prints something")
	}
}

func TestNotify(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Notify{"NEVER": NotifyNever, "never": NotifyNever, "SUCCESS": NotifySuccess,
		"success,DELAY": NotifySuccess | NotifyDelay, "FAILURE,FAILURE": NotifyFailure} {
		if got, err := ParseNotify(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "NEVER,SUCCESS", "SUCCESS,", "SOMETIMES"} {
		if _, err := ParseNotify(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	var unsaid Notify
	if !unsaid.Failure() || !unsaid.Delay() || unsaid.Success() {
		t.Error("without NOTIFY failures and delays are reported, successes not")
	}
	if NotifyNever.Failure() || NotifyNever.Delay() || NotifyNever.Success() {
		t.Error("NEVER reports something")
	}
}

func TestXtext(t *testing.T) {
	t.Parallel()
	for plain, want := range map[string]string{"": "", "abc": "abc", "a+b=c d": "a+2Bb+3Dc+20d", "é": "+C3+A9"} {
		if got := Xtext(plain); got != want {
			t.Errorf("%q: got %q, want %q", plain, got, want)
		}
	}
	for _, bad := range []string{"+", "+4", "+4G", "a b", "a=b", "é"} {
		if got, err := ParseXtext(bad); err == nil {
			t.Errorf("%q is taken for %q", bad, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		if got, err := ParseXtext(Xtext(s)); err != nil || got != s {
			t.Fatalf("%q: %q, %v", s, got, err)
		}
	})
}

func FuzzCutStatus(f *testing.F) {
	f.Add("5.1.1 no such user")
	f.Fuzz(func(t *testing.T, text string) {
		if s, _, ok := CutStatus(text); ok {
			if again, err := ParseStatus(s.String()); err != nil || again != s {
				t.Errorf("%q: %v prints as what is not a status: %v", text, s, err)
			}
		}
	})
}
