// Package advice says what would behave differently from Postfix with the main.cf and
// master.cf that a site has: for "posthaste check -v", before the site moves.
//
// It says nothing of what config.Config.Warnings already says (parameters that
// are unknown, do nothing here, or not yet), which every check does.
//
// # Diagnostics
//
// Each finding names its file and line, where there is one, and what to do:
//
//	main.cf:12: alias_maps: hash:/etc/aliases is not built for Posthaste; run: postalias hash:/etc/aliases
package advice

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// A finding is one difference and where it is from; line 0 is for what no line
// says.
type finding struct {
	file string
	line int
	text string
}

// Report returns one line for each difference, in the order of the files'
// lines; defaults come last. It looks at tables' files, and changes nothing.
func Report(cfg *config.Config, services []config.Service) []string {
	var list []finding
	for _, name := range cfg.Names() {
		if set, file, line := cfg.IsSet(name); set {
			list = append(list, setting(cfg, name, file, line)...)
		}
	}
	for i := range services {
		list = append(list, service(cfg, &services[i])...)
	}
	slices.SortStableFunc(list, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	list = append(list, defaults(cfg)...)
	lines := make([]string, 0, len(list))
	for _, f := range list {
		lines = append(lines, f.String())
	}
	return slices.Compact(lines)
}

func (f finding) String() string {
	if f.line == 0 {
		return f.text
	}
	return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text)
}

// setting looks at what a line of main.cf sets.
func setting(cfg *config.Config, name, file string, line int) (list []finding) {
	value, err := cfg.Value(name)
	if err != nil {
		return nil // what does not expand is an error of the configuration
	}
	for _, text := range tables(name, value) {
		list = append(list, finding{file, line, name + ": " + text})
	}
	if name == "queue_directory" {
		if _, err := os.Stat(filepath.Join(value, "deferred")); err == nil {
			list = append(list, finding{file, line, fmt.Sprintf("%s = %s: Postfix's queue is there, and is not looked at; "+
				"stop Postfix and run: posthaste spool import %s", name, value, value)})
		}
	}
	return list
}

// service looks at a line of master.cf.
func service(cfg *config.Config, s *config.Service) (list []finding) {
	title := "service " + s.Name + "/" + s.Type + ": "
	for _, o := range s.Overrides() {
		value, err := cfg.Expand(o.Value)
		if err != nil {
			continue
		}
		for _, text := range tables(o.Name, value) {
			list = append(list, finding{s.File, s.Line, title + "-o " + o.Name + ": " + text})
		}
	}
	if s.Type == "inet" && s.MaxProc == 1 {
		list = append(list, finding{s.File, s.Line, title +
			"a process limit of 1 means one client at a time; elsewhere, too, the limit is of clients in one process, not of processes"})
	}
	return list
}

// builtTable finds tables of the types that a command builds.
var builtTable = regexp.MustCompile(`(?:^|[\s,{=:])(hash|btree|lmdb|cdb|dbm|sdbm):(/[^\s,{}]+)`)

// foreign finds tables of the types that Postfix can have been built with.
var foreign = regexp.MustCompile(`(?:^|[\s,{=])(?:proxy:)?(ldap|mysql|pgsql|sqlite|memcache|mongodb|nis|nisplus|netinfo|dbm|sdbm):`)

// tables looks at the tables that a value names.
func tables(name, value string) (list []string) {
	for _, m := range foreign.FindAllStringSubmatch(value, -1) {
		if !slices.Contains(table.Types(), m[1]) && !readHere(m[1]) {
			list = append(list, fmt.Sprintf("there are no tables of type %s here; known are: %s", m[1], strings.Join(table.Types(), " ")))
		}
	}
	for _, m := range builtTable.FindAllStringSubmatch(value, -1) {
		spec := m[1] + ":" + m[2]
		path, err := table.WriterPath(spec)
		if err != nil {
			continue
		}
		builder := "postmap"
		if name == "alias_maps" || name == "alias_database" {
			builder = "postalias"
		}
		source, sourceErr := os.Stat(m[2])
		built, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && errors.Is(sourceErr, fs.ErrNotExist):
			list = append(list, fmt.Sprintf("%s: neither %s nor the text it is built from exists", spec, path))
		case errors.Is(err, fs.ErrNotExist):
			list = append(list, fmt.Sprintf("%s is not built for Posthaste, which reads %s; run: %s %s", spec, path, builder, spec))
		case err == nil && sourceErr == nil && source.ModTime().After(built.ModTime()):
			list = append(list, fmt.Sprintf("%s is newer than %s; run: %s %s", m[2], path, builder, spec))
		}
	}
	return list
}

// readHere says whether a type that table.Types does not list is read all the
// same: an old name of an indexed file.
func readHere(kind string) bool {
	_, err := table.WriterPath(kind + ":/x")
	return err == nil
}

// defaults says which defaults that the site has not set are others.
func defaults(cfg *config.Config) (list []finding) {
	for _, d := range config.Differences() {
		if set, _, _ := cfg.IsSet(d.Name); set || !config.Supported(d.Name) {
			continue
		}
		ours, err := cfg.Value(d.Name)
		if err != nil || ours == d.Postfix {
			continue
		}
		list = append(list, finding{text: fmt.Sprintf("%s is not set, and is %s here; in Postfix 3.7 it is %s: %s",
			d.Name, orEmpty(ours), orEmpty(d.Postfix), d.Reason)})
	}
	return list
}

func orEmpty(value string) string {
	if value == "" {
		return "empty"
	}
	return value
}
