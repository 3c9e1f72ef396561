// Package postmap is the commands postmap and postalias: they build lookup
// tables from text, change entries, and ask and list tables of any type.
//
//	postmap [-bfFhimnNoprsuUvw] [-c config_dir] [-d key] [-q key] [type:]file...
//	postalias [-fimnNoprsuUvw] [-c config_dir] [-d key] [-q key] [type:]file...
//
// Without -d, -q or -s each file is a source, from which the table of that type
// is built beside it and put in place of the one before at once. Readers
// see the old table or the new one, and take up the new one without a restart.
//
//	-b -h   with -q -: the input is a message; look its body lines, its header
//	        fields up
//	-m      with -b, -h: fields of MIME parts are header, not body
//	-c dir  the configuration directory, for default_database_type
//	-d key  delete an entry; "-": the keys on the standard input
//	-f      keep the letter case of keys
//	-F      values name files whose content, as base64, is the value; with -q,
//	        values are decoded
//	-i      add the entries on the standard input to the table
//	-j      with -s: JSON
//	-n -N   without or with a zero byte at the end of keys and values, for other
//	        readers of cdb: tables; without is the default, and -N changes nothing
//	        in tables of our own format, which know where a key ends
//	-o      keep root's rights although the source is not root's
//	-p      do not take over the source's permissions
//	-q key  look a key up; "-": the keys on the standard input
//	-r      entries that exist already are replaced, without a warning
//	-s      list all entries
//	-u -U   without, with UTF-8: entries that are not UTF-8 are passed over
//	        with a warning (smtputf8_enable)
//	-v      say what is done
//	-w      entries that exist already are passed over without a warning
//
// Tables in databases can be asked with -q: the program posthaste-tables does
// that, in the place of this one.
//
// The exit status is 0, or 1 if something failed or a key was not found.
//
// # Security
//
// Run by root with a source that belongs to somebody else, the commands take
// the rights of that user, unless -o is given: the user could put something
// else into the place of the file that is written.
//
// # Parameters
//
// default_database_type smtputf8_enable alias_database
package postmap

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// Types makes openers of types of tables beyond those of package table, given
// main.cf.
type Types func(*config.Config) map[string]table.Opener

// Run is the command postmap or postalias, by name, with more types, which may
// be nil. args is without the command's name.
func Run(name string, types Types, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var s syntax = mapSyntax{}
	if name == "postalias" {
		s = aliasSyntax{}
	}
	c := &command{name: name, syntax: s, types: types, stdin: stdin, stdout: stdout, stderr: stderr}
	return c.status(c.run(args))
}

// Newaliases is the command newaliases: postalias for each table of
// alias_database. args may hold postalias's options, but names no tables.
func Newaliases(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{name: "newaliases", syntax: aliasSyntax{}, stdin: stdin, stdout: stdout, stderr: stderr, databases: true}
	return c.status(c.run(args))
}

// Postalias is the command postalias.
func Postalias(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return Run("postalias", nil, args, stdin, stdout, stderr)
}

// syntax is how sources and answers look.
type syntax interface {
	// parse calls fn with the entries of a source.
	parse(name, text string, warn func(string), fn func(table.Line) error) error
	// separator stands between key and value in listings.
	separator() string
	// extra adds what a built table has besides its source.
	extra(add func(key, value string) error) error
	// letters is the options that the command takes, as for getopt.
	letters() string
}

// command is one run.
type command struct {
	name   string
	syntax syntax
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	databases bool // the tables are those of alias_database

	types Types
	extra map[string]table.Opener // what types has made

	opt      options
	defType  string
	utf8     bool
	maxQuery int // of a socketmap server, see table.Options
	maxReply int
	failures int
}

type options struct {
	body, header, mime     bool
	noFold, files          bool
	incremental, json      bool
	null, keepRoot, noPerm bool
	replace, ignore, dump  bool
	verbose                bool
	query, remove          *string
	config                 string
	utf8                   *bool
}

// usageError is a mistake in the command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// status reports err, if there is one, and is the exit status.
func (c *command) status(err error) int {
	if err != nil {
		c.print("fatal: %v", err)
		return 1
	}
	if c.failures > 0 {
		return 1
	}
	return 0
}

// print writes one line to the standard error. That it may fail changes
// nothing: there is nowhere else to say so.
func (c *command) print(format string, args ...any) {
	_, _ = fmt.Fprintf(c.stderr, "%s: %s\n", c.name, fmt.Sprintf(format, args...))
}

func (c *command) warn(text string) { c.print("warning: %s", text) }

func (c *command) verbosef(format string, args ...any) {
	if c.opt.verbose {
		c.print(format, args...)
	}
}

func (c *command) run(args []string) error {
	files, err := c.parseArgs(args)
	if err != nil {
		return err
	}
	cfg, err := config.ReadFor(config.Dir(c.opt.config), "alias_database", "default_database_type", "smtputf8_enable",
		"socketmap_max_query_size", "socketmap_max_reply_size")
	if err != nil {
		return err
	}
	if c.databases {
		files = cfg.List("alias_database")
	}
	if c.types != nil {
		c.extra = c.types(cfg)
	}
	c.defType = cfg.String("default_database_type")
	c.utf8 = cfg.Bool("smtputf8_enable")
	c.maxQuery, c.maxReply = int(cfg.Bytes("socketmap_max_query_size")), int(cfg.Bytes("socketmap_max_reply_size"))
	if c.opt.utf8 != nil {
		c.utf8 = *c.opt.utf8
	}
	switch {
	case c.opt.query != nil:
		return c.query(files, *c.opt.query)
	case c.opt.remove != nil:
		return c.remove(files, *c.opt.remove)
	case c.opt.dump:
		return c.dump(files)
	}
	for _, f := range files {
		if err := c.build(c.spec(f)); err != nil {
			return err
		}
	}
	return nil
}

// spec completes a table's name with the default type.
func (c *command) spec(file string) string {
	if table.IsSpec(file) {
		return file
	}
	return c.defType + ":" + file
}

// parseArgs reads options, in any order and grouped as getopt does, up to the
// first argument that is none.
func (c *command) parseArgs(args []string) (files []string, err error) {
	letters := c.syntax.letters()
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		group := args[0][1:]
		args = args[1:]
		if group == "-" {
			break
		}
		for group != "" {
			letter := group[0]
			group = group[1:]
			i := strings.IndexByte(letters, letter)
			if i < 0 || letter == ':' {
				return nil, c.usage(fmt.Sprintf("invalid option -- '%c'", letter))
			}
			value := ""
			if i+1 < len(letters) && letters[i+1] == ':' {
				switch {
				case group != "":
					value, group = group, ""
				case len(args) > 0:
					value, args = args[0], args[1:]
				default:
					return nil, c.usage(fmt.Sprintf("option requires an argument -- '%c'", letter))
				}
			}
			c.option(letter, value)
		}
	}
	return args, c.checkOptions(args)
}

func (c *command) usage(problem string) error {
	var flags, valued string
	letters := c.syntax.letters()
	for i := 0; i < len(letters); i++ {
		switch {
		case letters[i] == ':':
		case i+1 < len(letters) && letters[i+1] == ':':
			valued += map[byte]string{'c': " [-c config_dir]", 'd': " [-d key]", 'q': " [-q key]"}[letters[i]]
		default:
			flags += string(letters[i])
		}
	}
	return &usageError{problem + "\nusage: " + c.name + " [-" + flags + "]" + valued + " [map_type:]file..."}
}

func (c *command) option(letter byte, value string) {
	o := &c.opt
	yes, no := true, false
	switch letter {
	case 'b':
		o.body = true
	case 'c':
		o.config = value
	case 'd':
		o.remove = &value
	case 'f':
		o.noFold = true
	case 'F':
		o.files = true
	case 'h':
		o.header = true
	case 'i':
		o.incremental = true
	case 'j':
		o.json = true
	case 'm':
		o.mime = true
	case 'n':
		o.null = false
	case 'N':
		o.null = true
	case 'o':
		o.keepRoot = true
	case 'p':
		o.noPerm = true
	case 'q':
		o.query = &value
	case 'r':
		o.replace, o.ignore = true, false
	case 's':
		o.dump = true
	case 'u':
		o.utf8 = &no
	case 'U':
		o.utf8 = &yes
	case 'v':
		o.verbose = true
	case 'w':
		o.ignore, o.replace = true, false
	}
}

func (c *command) checkOptions(files []string) error {
	o := &c.opt
	modes := 0
	for _, on := range []bool{o.query != nil, o.remove != nil, o.dump} {
		if on {
			modes++
		}
	}
	switch {
	case modes > 1:
		return errors.New("specify only one of -s -q or -d")
	case (o.body || o.header || o.mime) && (o.query == nil || *o.query != "-"):
		return errors.New("specify -b -h or -m only with \"-q -\"")
	case o.mime && !o.body && !o.header:
		return errors.New("specify -m only with -b or -h")
	case o.json && !o.dump && o.query == nil:
		return errors.New("option -j requires -q or -s")
	case o.incremental && modes > 0:
		return errors.New("specify -i only without -s -q or -d")
	case c.databases && len(files) > 0:
		return fmt.Errorf("%q: newaliases takes its tables from alias_database", files[0])
	case len(files) == 0 && !c.databases:
		return c.usage("no table named")
	}
	return nil
}

// tables is the options for opening tables. Keys are folded as they were when
// the table was built.
func (c *command) tables() table.Options {
	return table.Options{Warn: c.warn, NoFold: c.opt.noFold, Types: c.extra, MaxQuery: c.maxQuery, MaxReply: c.maxReply}
}
