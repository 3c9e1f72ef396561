// Package advice reads a site's main.cf and master.cf for the person who is about to
// use them. [Mistakes] is what will refuse or defer mail, or is likely not meant: every
// "posthaste check" prints it. [Unwise] is what works and lets strangers in, or shows secrets, and
// [Report] what would behave differently from Postfix: for "posthaste check -v".
//
// It says nothing of what config.Config.Warnings already says (parameters that
// are unknown or do nothing here), nor of what services find when they read their
// settings. It asks no database, no other server and no DNS.
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
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

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
	return compose(cfg, services, unbuilt)
}

// Behavior is Report without the tables that have to be built, for who builds
// them.
func Behavior(cfg *config.Config, services []config.Service) []string {
	return compose(cfg, services, func(string, string) []string { return nil })
}

func compose(cfg *config.Config, services []config.Service, built func(name, value string) []string) []string {
	var list []finding
	tables := func(name, value string) []string { return append(unknown(value), built(name, value)...) }
	for _, name := range cfg.Names() {
		if set, file, line := cfg.IsSet(name); set {
			list = append(list, setting(cfg, tables, name, file, line)...)
		}
	}
	for i := range services {
		list = append(list, service(cfg, tables, &services[i])...)
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

// look is what is to be said about the tables that a value names.
type look func(name, value string) []string

// setting looks at what a line of main.cf sets.
func setting(cfg *config.Config, tables look, name, file string, line int) (list []finding) {
	value, err := cfg.Value(name)
	if err != nil {
		return nil // what does not expand is an error of the configuration
	}
	if config.NoEffect(name) != "" {
		return nil // nobody opens the tables that it names
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
func service(cfg *config.Config, tables look, s *config.Service) (list []finding) {
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
	if s.Type == "inet" && s.MaxProc == 1 && s.Command != "postscreen" { // whose limit is that of the service behind it
		list = append(list, finding{s.File, s.Line, title +
			"a process limit of 1 means one client at a time; elsewhere, too, the limit is of clients in one process, not of processes"})
	}
	return list
}

// builtTable finds tables of the types that a command builds.
var builtTable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{=:])(hash|btree|lmdb|cdb|dbm|sdbm):(/[^\s,{}]+)`)
})

// foreign finds tables of the types that Postfix can have been built with.
var foreign = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{=])(?:proxy:)?(ldap|mysql|pgsql|sqlite|memcache|mongodb|nis|nisplus|netinfo|dbm|sdbm):`)
})

// unknown says which types of tables that a value names do not exist here.
func unknown(value string) (list []string) {
	for _, m := range foreign().FindAllStringSubmatch(value, -1) {
		if !slices.Contains(table.Types(), m[1]) && !readHere(m[1]) {
			list = append(list, fmt.Sprintf("there are no tables of type %s here; known are: %s", m[1], strings.Join(table.Types(), " ")))
		}
	}
	return list
}

// A Table is an indexed file that a command builds from a text.
type Table struct {
	Spec    string // hash:/etc/aliases
	Source  string // the text
	Path    string // what is built
	Builder string // postmap or postalias
}

// Tables are those that the settings and services name, in order of their
// names. Files in which the mail system keeps what it learns are not among them.
func Tables(cfg *config.Config, services []config.Service) []Table {
	found := map[string]Table{}
	add := func(name, value string) {
		for _, t := range built(name, value) {
			if old, ok := found[t.Spec]; !ok || old.Builder == "postmap" {
				found[t.Spec] = t
			}
		}
	}
	for _, name := range cfg.Names() {
		if value, err := cfg.Value(name); err == nil {
			add(name, value)
		}
	}
	for i := range services {
		for _, o := range services[i].Overrides() {
			if value, err := cfg.Expand(o.Value); err == nil {
				add(o.Name, value)
			}
		}
	}
	list := slices.Collect(maps.Values(found))
	slices.SortFunc(list, func(a, b Table) int { return cmp.Compare(a.Spec, b.Spec) })
	return list
}

// built are the tables that a value names and that a command builds.
func built(name, value string) (list []Table) {
	if strings.HasSuffix(name, "_cache_database") || strings.HasSuffix(name, "_cache_map") || name == "address_verify_map" {
		return nil // learnt, not built
	}
	for _, m := range builtTable().FindAllStringSubmatch(value, -1) {
		t := Table{Spec: m[1] + ":" + m[2], Source: m[2], Builder: "postmap"}
		var err error
		if t.Path, err = table.WriterPath(t.Spec); err != nil {
			continue
		}
		if name == "alias_maps" || name == "alias_database" {
			t.Builder = "postalias"
		}
		list = append(list, t)
	}
	return list
}

// unbuilt looks at the tables that a value names. One that Postfix has built is read as it is,
// if it can be.
func unbuilt(name, value string) (list []string) {
	for _, t := range built(name, value) {
		path := cmp.Or(table.BuiltPath(t.Spec), t.Path)
		source, sourceErr := os.Stat(t.Source)
		index, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && errors.Is(sourceErr, fs.ErrNotExist):
			list = append(list, fmt.Sprintf("%s: neither %s nor the text it is built from exists", t.Spec, t.Path))
		case errors.Is(err, fs.ErrNotExist):
			list = append(list, fmt.Sprintf("%s is not built for Posthaste, which reads %s; run: %s %s", t.Spec, t.Path, t.Builder, t.Spec))
		case err == nil && sourceErr == nil && source.ModTime().After(index.ModTime()):
			list = append(list, fmt.Sprintf("%s is newer than %s; run: %s %s", t.Source, path, t.Builder, t.Spec))
		case err == nil && path != t.Path:
			list = append(list, foreignFile(t, path)...)
		}
	}
	return list
}

// foreignFile says what is to be said of a table that is read from the file that Postfix has
// built: that it cannot be, or that there is another.
func foreignFile(t Table, path string) []string {
	opened, err := table.Open(t.Spec, table.Options{})
	if err != nil {
		return []string{fmt.Sprintf("%v; run: %s %s", err, t.Builder, t.Spec)}
	}
	_ = opened.Close() // nothing was written
	if _, err := os.Stat(t.Path); err == nil {
		return []string{fmt.Sprintf("%s, which Postfix has built, is newer than %s, and is read; to read the other run: %s %s", path, t.Path, t.Builder, t.Spec)}
	}
	return nil
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
