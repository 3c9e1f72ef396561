package manual

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What bash offers, asked of the script itself. The commands that it calls are
// played by functions.
func TestBashCompletion(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("SKIPPED, NOTHING WAS CHECKED: bash is not installed")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "posthaste.bash")
	if err := os.WriteFile(script, bashCompletion(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"some", "sub"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var selected []string
	for _, o := range selectionOptions() {
		selected = append(selected, "--"+o.name)
	}
	for _, c := range []struct {
		line string // the last word is the one to complete; _ is an empty one
		want []string
	}{
		{"posthaste sta", []string{"start", "start-fg", "status"}},
		{"posthaste -c s", []string{"some", "sub"}},
		{"posthaste -c some sta", []string{"start", "start-fg", "status"}},
		{"posthaste start -", []string{"-w"}},
		{"posthaste postqueue -", append([]string{"-c", "-f", "-i", "-j", "-p", "-s", "-v"}, selected...)},
		{"posthaste spool e", []string{"export"}},
		{"posthaste spool export 4", []string{"4c1", "4c2"}},
		{"posthaste migrate --", []string{"--from", "--to", "--dry-run", "--queue", "--back"}},
		{"posthaste migrate --dry-run --f", []string{"--from"}},
		{"posthaste migrate --from s", []string{"some", "sub"}},
		{"posthaste ver", []string{"version"}},
		{"posthaste explain _", []string{"4c1", "4c2", "ALL"}},
		{"posthaste queue su", []string{"suspend", "suspended"}},
		{"posthaste su", []string{"suspend", "suspended", "suppress"}},
		{"posthaste setup s", []string{"sender", "site"}},
		{"posthaste domain add --class v", []string{"virtual"}},
		{"posthaste suspend --se", []string{"--sender", "--sender-domain"}},
		{"posthaste resume --tr", []string{"--transport"}},
		{"posthaste suspended -", []string{"-j"}},
		{"posthaste lim", []string{"limit", "limited"}},
		{"posthaste limit --r", []string{"--reason", "--raise"}},
		{"posthaste unlimit --", []string{"--destination", "--nexthop", "--transport"}},
		{"posthaste queue delete --se", []string{"--sender"}},
		{"posthaste queue delete --queue de", []string{"deferred"}},
		{"postsuper -d ALL --all", []string{"--all-recipients"}},
		{"postsuper -d A", []string{"ALL"}},
		{"postsuper -d ALL de", []string{"deferred"}},
		{"postconf my", []string{"mydomain", "myhostname"}},
		{"postconf -C s", []string{"service"}},
		{"postconf myhostname = _", []string{"mta.example"}},
		{"postmap ha", []string{"hash:"}},
		{"postmap hash : so", []string{"some"}},
		{"sendmail -R h", []string{"hdrs"}},
		{"/usr/sbin/qshape -b", []string{"-b"}},
	} {
		var words []string
		for _, w := range strings.Fields(c.line) {
			words = append(words, "'"+strings.TrimPrefix(w, "_")+"'")
		}
		program := fmt.Sprintf(`. %s
compopt() { :; }
postqueue() { printf '{"queue_name": "active", "queue_id": "%%s", "sender": "a@b"}\n' 4c1 4c2; }
postconf() { case $1 in -dH) echo mydomain; echo myhostname; echo relayhost ;; -h) echo mta.example ;; -m) echo hash; echo regexp ;; esac; }
COMP_WORDS=(%s)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_posthaste "${COMP_WORDS[0]}"
for w in "${COMPREPLY[@]}"; do echo "$w"; done
`, script, strings.Join(words, " "))
		cmd := exec.Command(bash, "--norc", "-c", program)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", c.line, err, out)
		}
		if got := strings.Fields(string(out)); !slices.Equal(got, c.want) {
			t.Errorf("%s: offers %q, expected %q", c.line, got, c.want)
		}
	}
}

func TestZshCompletionParses(t *testing.T) {
	t.Parallel()
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("SKIPPED, NOTHING WAS CHECKED: zsh is not installed")
	}
	script := filepath.Join(t.TempDir(), "_posthaste")
	if err := os.WriteFile(script, zshCompletion(), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(zsh, "-n", script).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
