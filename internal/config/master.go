package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Service is one entry of master.cf, with its defaults filled in.
type Service struct {
	Name         string // smtp, 127.0.0.1:10025, cleanup, ...
	Type         string // inet, unix, fifo, pass or unix-dgram
	Private      bool   // reachable for the mail system only
	Unprivileged bool   // runs as mail_owner
	Chroot       bool
	Wakeup       time.Duration // time between wake-ups; 0 is never
	WakeupLazy   bool          // no wake-up before the service was used once
	MaxProc      int           // 0 is no limit
	Command      string        // program, without directory
	Args         []string      // its arguments; the braces of { a group } are stripped

	File     string
	Line     int
	Replaces int // line of an earlier entry of the same name and type, which this one replaces; else 0

	ignored string // what to say of a line before it that was none; it can only be the first

	Fields [8]string // as written: name type private unpriv chroot wakeup maxproc command+args
}

// A LineError says what is wrong with one entry of master.cf. The service of that entry is
// left out; the other services do not depend on it.
type LineError struct {
	File string
	Line int
	Name string // of the service; never empty
	Type string // as written; empty if the entry ends before it
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// Concerns reports whether the entry is that of a service. If its type is none, it stands for
// all services of its name.
func (e *LineError) Concerns(name, typ string) bool {
	return e.Name == name && (e.Type == typ || !IsServiceType(e.Type))
}

// JoinLineErrors makes one error of all, one a line; nil if there are none. It is for
// callers that want the whole of master.cf or nothing.
func JoinLineErrors(faulty []*LineError) error {
	var errs []error
	for _, e := range faulty {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// LoadMaster reads master.cf in dir. c gives the defaults (default_process_limit,
// compatibility_level) and checks the -o options' expressions. The services are those whose
// entries are well-formed; faulty are the other entries, in the order of the file. The error
// says why the file cannot be read.
func LoadMaster(dir string, c *Config) (services []Service, faulty []*LineError, err error) {
	file := filepath.Join(dir, "master.cf")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	services, faulty = parseMaster(file, string(text), c)
	return services, faulty, nil
}

// LoadMasterString reads a master.cf given as text.
func LoadMasterString(master string, c *Config) (services []Service, faulty []*LineError) {
	return parseMaster("master.cf", master, c)
}

func parseMaster(file, text string, c *Config) (services []Service, faulty []*LineError) {
	ignored := ""
	for _, l := range LogicalLines(text) {
		s := Service{File: file, Line: l.Line}
		if l.Orphan {
			ignored = l.OrphanWarning(file)
			continue
		}
		if err := s.parse(l.Text, c); err != nil {
			words := append(strings.Fields(l.Text), "", "") // a line of nothing but \v has no words
			e := &LineError{File: file, Line: l.Line, Name: words[0], Type: words[1], Err: err}
			faulty = append(faulty, e)
			services = removeService(services, e)
			continue
		}
		services = addService(services, s)
	}
	if len(services) > 0 {
		services[0].ignored = ignored
	}
	return services, faulty
}

// removeService removes an earlier entry that a faulty one replaces: it has options that are
// not meant to be in force.
func removeService(services []Service, e *LineError) []Service {
	return slices.DeleteFunc(services, func(s Service) bool { return s.Name == e.Name && s.Type == e.Type })
}

// addService appends s, or puts it in the place of an earlier entry for the
// same endpoint.
func addService(services []Service, s Service) []Service {
	for i := range services {
		if services[i].Name == s.Name && services[i].Type == s.Type {
			s.Replaces = services[i].Line
			services[i] = s
			return services
		}
	}
	return append(services, s)
}

// ServiceFields splits a logical line of master.cf into its eight fields; the last
// holds the command with its arguments. The error says which field is missing.
func ServiceFields(line string) (fields [8]string, err error) {
	names := [8]string{"name", "type", "private", "unprivileged", "chroot", "wakeup time", "process limit", "command"}
	rest := strings.Trim(line, " \t\r\n")
	for i := range fields {
		if rest == "" {
			return fields, fmt.Errorf("expected 8 fields (name type private unpriv chroot wakeup maxproc command), the %s is missing", names[i])
		}
		end := strings.IndexAny(rest, " \t\r\n")
		if end < 0 || i == len(fields)-1 {
			end = len(rest)
		}
		fields[i] = rest[:end]
		rest = trimLeft(rest[end:])
	}
	return fields, nil
}

func (s *Service) parse(line string, c *Config) error {
	f, err := ServiceFields(line)
	if err != nil {
		return err
	}
	if err := s.parseFields(f); err != nil {
		return err
	}
	if f[4] == "-" {
		s.Chroot = chrootByDefault(c)
	}
	if f[6] == "-" {
		s.MaxProc = c.Int("default_process_limit")
	}
	return s.parseCommand(f[7], c)
}

// CheckFields says what is wrong with the fields of an entry, the command excepted.
func CheckFields(f [8]string) error { return new(Service).parseFields(f) }

// parseFields reads the fields before the command. A default that depends on main.cf
// is left out.
func (s *Service) parseFields(f [8]string) error {
	s.Fields = f
	s.Name, s.Type = f[0], f[1]
	if !IsServiceType(s.Type) {
		return fmt.Errorf("service %s: type %s: expected inet, unix, fifo, pass or unix-dgram", s.Name, s.Type)
	}
	fail := func(field, value, expected string) error {
		return fmt.Errorf("service %s/%s: %s %s: expected %s", s.Name, s.Type, field, value, expected)
	}
	var ok bool
	if s.Private, ok = yesNo(f[2], s.Type != "inet"); !ok {
		return fail("private", f[2], "y, n or -")
	}
	if s.Private && s.Type == "inet" {
		return fail("private", f[2], "n, as anybody can reach an inet service")
	}
	if s.Unprivileged, ok = yesNo(f[3], true); !ok {
		return fail("unprivileged", f[3], "y, n or -")
	}
	if s.Chroot, ok = yesNo(f[4], false); !ok {
		return fail("chroot", f[4], "y, n or -")
	}
	if err := s.parseWakeup(f[5]); err != nil {
		return fail("wakeup", f[5], err.Error())
	}
	if f[6] == "-" {
		return nil
	}
	n, err := strconv.ParseUint(f[6], 10, 31)
	if err != nil {
		return fail("process limit", f[6], "a number, 0 for no limit, or -")
	}
	s.MaxProc = int(n)
	return nil
}

// IsServiceType reports whether an entry of master.cf may have the type.
func IsServiceType(name string) bool {
	switch name {
	case "inet", "unix", "fifo", "pass", "unix-dgram":
		return true
	}
	return false
}

// chrootByDefault: the meaning of - in the chroot field changed at level 1.
func chrootByDefault(c *Config) bool {
	level, err := ParseLevel(c.String("compatibility_level"))
	return err == nil && level.Compare(Level{1}) < 0
}

func yesNo(field string, byDefault bool) (value, ok bool) {
	switch field {
	case "-":
		return byDefault, true
	case "y":
		return true, true
	case "n":
		return false, true
	}
	return false, false
}

func (s *Service) parseWakeup(field string) error {
	digits, lazy := strings.CutSuffix(field, "?")
	s.WakeupLazy = lazy
	if digits == "-" {
		return nil
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return errors.New("a number of seconds, with ? if only after first use, or -")
	}
	s.Wakeup = time.Duration(n) * time.Second
	return nil
}

func (s *Service) parseCommand(text string, c *Config) error {
	words, err := SplitArgs(text)
	if err != nil {
		return fmt.Errorf("service %s/%s: %w", s.Name, s.Type, err)
	}
	s.Command, s.Args = words[0], words[1:]
	if s.Command == "" || strings.ContainsAny(s.Command, "/ \t") {
		return fmt.Errorf("service %s/%s: command %s: expected the name of a program without a directory", s.Name, s.Type, s.Command)
	}
	over, err := optionOverrides(s.Args)
	if err != nil {
		return fmt.Errorf("service %s/%s: %w", s.Name, s.Type, err)
	}
	for _, o := range over {
		if _, err := c.Expand(o.Value); err != nil {
			return fmt.Errorf("service %s/%s: -o %s: %w", s.Name, s.Type, o, err)
		}
	}
	return nil
}

// SplitArgs splits a command line at white space. White space inside braces does
// not split, and an argument that is one group loses its braces and the space next to them.
func SplitArgs(text string) ([]string, error) {
	words, err := splitWords(text, func(c byte) bool { return c != ',' && isListSpace(c) })
	for i, w := range words {
		words[i] = stripBraces(w)
		if w[0] == '{' && words[i] == w {
			return nil, fmt.Errorf("expected white space after the } of %q", abbreviate(w))
		}
	}
	return words, err
}

// JoinArgs is the inverse of SplitArgs: arguments that need them get braces, as Postfix's postconf
// prints them. An argument with a brace too many, as in "a{b c}d}", is read back only without.
func JoinArgs(args []string) string {
	var b strings.Builder
	for i, a := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		if braced := "{" + a + "}"; (a == "" || strings.ContainsAny(a, " \t\r\n") || a[0] == '{') && readsBack(braced, a) {
			b.WriteString(braced)
		} else {
			b.WriteString(a)
		}
	}
	return b.String()
}

// readsBack says whether a text is read as one argument, and as that one.
func readsBack(text, arg string) bool {
	words, err := SplitArgs(text)
	return err == nil && len(words) == 1 && words[0] == arg
}

// optionOverrides collects the -o options at the head of args. They end at the first
// argument that is no option: what follows belongs to the service (pipe's argv=).
func optionOverrides(args []string) ([]Override, error) {
	var over []Override
	args = SeparateOptions(args)
	for i := 0; i < len(args) && strings.HasPrefix(args[i], "-"); i++ {
		text, isO := strings.CutPrefix(args[i], "-o")
		if !isO {
			continue
		}
		if text == "" {
			i++
			if i == len(args) {
				return nil, errors.New("expected name=value after -o")
			}
			text = args[i]
		}
		o, err := ParseOverride(text)
		if err != nil {
			return nil, fmt.Errorf("-o %s: %w", abbreviate(text), err)
		}
		over = append(over, o)
	}
	return over, nil
}

// SeparateOptions takes options that are written as one word apart, up to the first
// argument that is none: -vo name=value, and -voname=value, are -v -o name=value.
func SeparateOptions(args []string) (list []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' {
			return append(list, args[i:]...)
		}
		flags, value, hasO := strings.Cut(arg[1:], "o")
		if strings.Trim(flags, "vD") != "" { // not one of a service's
			list = append(list, arg)
			continue
		}
		if flags != "" {
			list = append(list, "-"+flags)
		}
		if !hasO {
			continue
		}
		list = append(list, "-o")
		if value == "" && i+1 < len(args) {
			i++
			value = args[i]
		}
		if value != "" {
			list = append(list, value)
		}
	}
	return list
}

// Overrides returns the settings of the entry's -o options, in order.
func (s *Service) Overrides() []Override {
	over, err := optionOverrides(s.Args)
	if err != nil {
		panic("config: master.cf entry was loaded with a malformed option: " + err.Error())
	}
	return over
}
