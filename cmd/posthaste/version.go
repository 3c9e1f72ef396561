package main

import (
	"fmt"
	"runtime/debug"

	"posthaste/internal/config"
)

// version says which program this is: the default of mail_version, whatever
// main.cf sets, and what the compiler noted of the source and of itself.
func version(info *debug.BuildInfo) string {
	p, _ := config.Lookup("mail_version")
	text := "posthaste " + p.Default + "\n"
	if info == nil {
		return text
	}
	built := make(map[string]string)
	for _, s := range info.Settings {
		built[s.Key] = s.Value
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		text += "module " + v + "\n"
	}
	if commit := built["vcs.revision"]; commit != "" {
		text += "commit " + commit
		if at := built["vcs.time"]; at != "" {
			text += " of " + at
		}
		if built["vcs.modified"] == "true" {
			text += ", with changes"
		}
		text += "\n"
	}
	return text + fmt.Sprintf("built with %s for %s/%s\n", info.GoVersion, built["GOOS"], built["GOARCH"])
}
