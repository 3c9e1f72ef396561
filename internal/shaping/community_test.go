package shaping

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCommunity reads KumoMTA's own files, where somebody has them: those of a checkout.
func TestCommunity(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("KUMOMTA")
	if dir == "" {
		t.Skip("SKIPPED: KUMOMTA does not name a checkout of KumoMTA")
	}
	rules, warnings, err := Load([]string{filepath.Join(dir, "assets/policy-extras/shaping.toml"), filepath.Join(dir, "assets/community/shaping.toml")})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		t.Log(w)
	}
	honoured, named, ignored := rules.Count()
	t.Logf("%d keys are honoured, %d are named, %d steer the insides of KumoMTA; %d rules of automation", honoured, named, ignored, len(rules.Automation()))
	if len(rules.Automation()) < 40 || honoured < 200 {
		t.Error("that is less than there was")
	}
}
