package script

import (
	"flag"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the dialogues to what the server says")

func TestDialogues(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 300 {
		t.Errorf("only %d dialogues", len(files))
	}
	r := &Runner{Update: *update}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			namesStandard(t, file)
			r.Run(t, file)
		})
	}
}

// standard is what a dialogue is about: a section of an RFC, or the parameter or
// word of Postfix's that no RFC knows.
var standard = regexp.MustCompile(`\bRFC [0-9]{3,5}( section [0-9A-Z][0-9.]*| X\.[0-9.]+)|\bPostfix,? [a-z]\w+`)

func namesStandard(t *testing.T, file string) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !standard.Match(ar.Comment) {
		t.Errorf("%s does not begin by saying which section of which RFC, or which of Postfix's parameters, it is about: %q", file, ar.Comment)
	}
}
