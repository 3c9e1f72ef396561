package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// sandboxed is the environment variable that has the test program try what
// TestSandbox asks: the directory that it may write below.
const sandboxed = "POSTHASTE_TEST_SANDBOX"

func TestMain(m *testing.M) {
	if dir := os.Getenv(sandboxed); dir != "" {
		os.Exit(try(dir))
	}
	os.Exit(m.Run())
}

// try does what a sandboxed process may and may not do, and prints the errors.
func try(dir string) int {
	outside := dir + ".outside"
	if err := Sandbox([]string{dir, dir + ".missing"}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	results := map[string]error{}
	_, results["read outside"] = os.ReadFile(filepath.Join(outside, "f"))
	_, results["list outside"] = os.ReadDir(outside)
	results["create inside"] = os.WriteFile(filepath.Join(dir, "new"), []byte("x"), 0o600)
	results["truncate inside"] = os.Truncate(filepath.Join(dir, "new"), 0)
	results["make a directory inside"] = os.Mkdir(filepath.Join(dir, "sub"), 0o700)
	results["rename inside"] = os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "sub", "new"))
	results["remove inside"] = os.RemoveAll(filepath.Join(dir, "sub"))
	results["no create outside"] = os.WriteFile(filepath.Join(outside, "new"), nil, 0o600)
	results["no write outside"] = os.WriteFile(filepath.Join(outside, "f"), []byte("changed"), 0o600)
	results["no truncate outside"] = os.Truncate(filepath.Join(outside, "f"), 0)
	results["no rename outside"] = os.Rename(filepath.Join(outside, "f"), filepath.Join(outside, "g"))
	results["no rename to outside"] = os.Rename(filepath.Join(dir, "f"), filepath.Join(outside, "h"))
	results["no link to outside"] = os.Link(filepath.Join(dir, "f"), filepath.Join(outside, "h"))
	results["no symbolic link inside"] = os.Symlink("/", filepath.Join(dir, "s"))
	results["no remove outside"] = os.Remove(filepath.Join(outside, "f"))
	results["no execution"] = exec.Command("/bin/true").Run()
	_, results["no execution on another thread"] = syscall.ForkExec("/bin/true", []string{"true"}, nil)
	texts := map[string]string{}
	for what, err := range results {
		switch {
		case err == nil:
			texts[what] = "done"
		case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EXDEV):
			texts[what] = "refused"
		default:
			texts[what] = err.Error()
		}
	}
	if json.NewEncoder(os.Stdout).Encode(texts) != nil {
		return 1
	}
	return 0
}

// TestSandbox runs another process, as a sandbox is for good: as the present
// user, and as an ordinary one if that is root.
func TestSandbox(t *testing.T) {
	t.Parallel()
	if !Sandboxes() {
		t.Skip("SKIPPED: this kernel has no Landlock, or not enabled")
	}
	for _, uid := range []uint32{uint32(os.Getuid()), 65534} {
		if os.Getuid() != 0 && uid == 65534 {
			continue
		}
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			t.Parallel()
			top, err := os.MkdirTemp("", "sandbox")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(top) })
			dir := filepath.Join(top, "inside")
			for _, d := range []string{dir, dir + ".outside"} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(d, "f"), []byte("text"), 0o644); err != nil {
					t.Fatal(err)
				}
				for _, p := range []string{d, filepath.Join(d, "f")} {
					if err := os.Chown(p, int(uid), -1); err != nil {
						t.Fatal(err)
					}
				}
			}
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			copied := filepath.Join(top, "program") // go's build directory is its owner's
			if b, err := os.ReadFile(program); err != nil || os.WriteFile(copied, b, 0o755) != nil || os.Chmod(top, 0o755) != nil {
				t.Fatal("cannot copy the test program", err)
			}
			var out []byte
			for limit := time.Now().Add(testwait.Patience); ; time.Sleep(10 * time.Millisecond) {
				cmd := exec.Command(copied)
				cmd.Env = append(os.Environ(), sandboxed+"="+dir)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uint32(os.Getgid()), NoSetGroups: true}}
				cmd.Stderr = os.Stderr
				out, err = cmd.Output()
				// A process that another test starts may have the copy open for writing for a moment.
				if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(limit) {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]string
			if err := json.Unmarshal(out, &got); err != nil || len(got) < 10 {
				t.Fatalf("%s: %v", out, err)
			}
			for what, result := range got {
				want := "done"
				if strings.HasPrefix(what, "no ") {
					want = "refused"
				}
				if result != want {
					t.Errorf("%s: %s", what, result)
				}
			}
			if b, err := os.ReadFile(filepath.Join(dir+".outside", "f")); err != nil || string(b) != "text" {
				t.Errorf("the file outside: %q %v", b, err)
			}
		})
	}
}
