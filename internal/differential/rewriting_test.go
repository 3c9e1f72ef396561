package differential

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// An example is one of docs/rewriting.md.
type example struct {
	main, from, to, field string
	want                  map[string]string
}

// readExamples finds the examples: the blocks that are indented by four.
func readExamples(t *testing.T) []example {
	t.Helper()
	text, err := os.ReadFile("../../docs/rewriting.md")
	if err != nil {
		t.Fatal(err)
	}
	var list []example
	for block := range strings.SplitSeq(string(text), "\n\n") {
		if !strings.HasPrefix(block, "    ") {
			continue
		}
		e := example{from: "a@from.test", to: "b@to.test", want: map[string]string{}}
		for line := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "main.cf":
				e.main += value + "\n"
			case "from":
				e.from = value
			case "to":
				e.to = value
			case "field":
				e.field = value
			case "sent", "sent from", "sent field", "sent nowhere", "refused":
				e.want[key] = value
			default:
				t.Fatalf("docs/rewriting.md: what is %q?", line)
			}
		}
		if len(e.want) == 0 {
			t.Fatalf("docs/rewriting.md: nothing comes of\n%s", block)
		}
		list = append(list, e)
	}
	return list
}

// What docs/rewriting.md says of addresses is so: with us, and with the original.
func TestRewritingExamples(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: the mail systems here are made for root")
	}
	examples := readExamples(t)
	if len(examples) < 15 {
		t.Fatalf("%d examples", len(examples))
	}
	for i, e := range examples {
		t.Run(fmt.Sprintf("%d", i+1), func(t *testing.T) {
			t.Parallel()
			ar := &txtar.Archive{Files: []txtar.File{{Name: "main.cf", Data: []byte(e.main)}}}
			e.try(t, newOurs(t, ar))
			if *whole {
				e.try(t, newOriginal(t, ar))
			}
		})
	}
}

func (e *example) try(t *testing.T, s *system) {
	if s.lost {
		return
	}
	angle := func(a string) string { return "<" + strings.Trim(a, "<>") + ">" }
	text := "send " + angle(e.from) + " " + angle(e.to) + "\n"
	if e.field != "" {
		text += "To: " + e.field + "\n"
	}
	said := s.play("smtp", text+"Subject: s\n\nbody\n")
	got := map[string]string{}
	var rcpts []string
	for line := range strings.Lines(said) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "sent MAIL FROM:<"):
			got["sent from"], _, _ = strings.Cut(line[len("sent MAIL FROM:<"):], ">")
		case strings.HasPrefix(line, "sent RCPT TO:<"):
			r, _, _ := strings.Cut(line[len("sent RCPT TO:<"):], ">")
			rcpts = append(rcpts, r)
		case strings.HasPrefix(line, "  | To: "):
			got["sent field"] = line[len("  | To: "):]
		case strings.HasPrefix(line, `  | \t`) && got["sent field"] != "" && strings.HasSuffix(got["sent field"], ","):
			got["sent field"] += " " + line[len(`  | \t`):]
		case strings.HasPrefix(line, "S: 5") && got["refused"] == "":
			got["refused"] = line[len("S: "):]
		}
	}
	slices.Sort(rcpts)
	got["sent"] = strings.Join(rcpts, " ")
	if len(rcpts) == 0 {
		got["sent nowhere"] = ""
	}
	for key, want := range e.want {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s: %s %q, want %q, in\n%s", s.who(), key, value, want, said)
		}
	}
}
