package postmulti

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"-l", "-lj", "-laRv -g a -i b", "-p -- start", "-av -p start", "-x -R ls -l", "-e init",
		"-I posthaste-a -Gx -e create queue_directory=/q", "-I - -e assign -i x", "-ecreate -I postfix-a"} {
		if _, err := parse(strings.Fields(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	for _, line := range []string{"", "start", "-l -p x", "-jp x", "-j", "-j -e init", "-p", "-x", "-e", "-e other", "-z", "-l more", "-l -I posthaste-a", "-R -p start",
		"-e create -I name", "-e create -I posthaste-a/b", "-e enable -i x y", "-e init queue_directory=/q"} {
		if o, err := parse(strings.Fields(line)); err == nil {
			t.Errorf("%s: accepted: %+v", line, o)
		}
	}
	o, err := parse([]string{"-i", "x", "-p", "--", "start", "-w"})
	if err != nil || !slices.Equal(o.words, []string{"start", "-w"}) || o.name != "x" || o.mode != 'p' {
		t.Errorf("%+v %v", o, err)
	}
}

func TestWrapper(t *testing.T) {
	t.Parallel()
	const several = "multi_instance_directories = /etc/posthaste-a\n"
	for _, tt := range []struct{ main, words, want string }{
		{"", "start", ""},
		{"multi_instance_wrapper = /bin/w\n", "start", ""},
		{several, "start", "error"},
		{several + "command_directory = /usr/sbin\nmulti_instance_wrapper = ${command_directory}/postmulti -p --\n", "check -v", "/usr/sbin/postmulti -p -- check -v"},
		{several + "multi_instance_wrapper = /bin/w\n", "start-fg", "error"},
		{several + "multi_instance_wrapper = /bin/w\n", "", ""},
	} {
		cfg, err := config.LoadString("myhostname = a.test\n" + tt.main)
		if err != nil {
			t.Fatal(err)
		}
		argv, err := Wrapper(cfg, strings.Fields(tt.words))
		got := strings.Join(argv, " ")
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%s%s: %s (%v), expected %s", tt.main, tt.words, got, err, tt.want)
		}
	}
}

// A site with one instance need not have heard of multi_instance_enable. With others, the
// primary instance has to be enabled as they have. Postfix 3.7.11 says the same of both.
func TestPrimaryAlone(t *testing.T) {
	t.Parallel()
	for text, enabled := range map[string]string{
		"":                                      "y",
		"multi_instance_enable = no\n":          "y",
		"multi_instance_directories = $other\n": "n",
		"multi_instance_directories = $other\nmulti_instance_enable = yes\n": "y",
	} {
		root := t.TempDir()
		for name, text := range map[string]string{"one": "other = " + root + "/two\n" + text, "two": "multi_instance_name = postfix-two\n"} {
			if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, name, "main.cf"), []byte("compatibility_level = 3.6\nmyhostname = a.test\n"+text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var out, errs strings.Builder
		if status := Run([]string{"-c", root + "/one", "-l", "-i", "-"}, Tools{Stdout: &out, Stderr: &errs}); status != 0 || errs.String() != "" {
			t.Fatalf("%q: status %d: %s", text, status, errs.String())
		}
		if got := strings.Fields(out.String()); len(got) != 4 || got[2] != enabled {
			t.Errorf("%q: %q, expected enabled %s", text, out.String(), enabled)
		}
	}
}

// As Postfix 3.11 writes it, but for the first letter of the group, which is all that it has of it.
func TestListJSON(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"one": "multi_instance_directories = " + root + "/two\nmulti_instance_enable = yes\n",
		"two": "multi_instance_name = posthaste-two\nmulti_instance_group = a \"b\\\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name, "main.cf"), []byte("compatibility_level = 3.6\nmyhostname = a.test\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	if status := Run([]string{"-c", root + "/one", "-lj"}, Tools{Stdout: &out, Stderr: &errs}); status != 0 || errs.String() != "" {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	want := `{"name": "-","group": "-","enabled": "y","config_directory": "` + root + `/one"}
{"name": "posthaste-two","group": "a \"b\\","enabled": "n","config_directory": "` + root + `/two"}
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
