// Package postconf is the postconf command: it shows and changes main.cf and
// master.cf.
//
// Without an editing option it prints parameters as "name = value", all of them or
// those that are named:
//
//	-d    defaults instead of actual values
//	-n    only what main.cf sets
//	-x    values with $name expanded; with -M and -F those of -o options
//	-h -H values only, names only
//	-f    long lines folded
//	-j    each setting as a JSON object on a line of its own: {"name": "value"}
//	-o name=value  as if main.cf said so, too (may be repeated)
//	-C class       builtin, service, user or all (the default); or own, what only Posthaste has
//	-M    master.cf entries        [service[/type]]
//	-F    master.cf fields         [service[/type[/field]]]
//	-P    master.cf -o parameters  [service[/type[/parameter]]]
//	-m -l -a -A    lookup table types, mailbox locks, SASL server and client types
//	-b -t          bounce message templates, with and without $name expanded
//	-T what        compile-version, run-version or public-key-algorithms
//	-c dir         another configuration directory
//	-q -v          no warnings; say which files are read, and what each parameter means
//
// -e name=value changes, -X removes and -# comments out; with -M, -F and -P they do so
// in master.cf. A name=value argument alone is an edit. An edit keeps comments and
// order, and the file's owner and mode; new settings go to the end. It is atomic: readers see
// the file before or after, whole. Two edits at a time wait for each other.
//
// # Security
//
// Postconf does what its caller could do with an editor. It creates its temporary file
// beside the edited one, as new, so the directory must belong to the administrator.
//
// # Diagnostics
//
// Warnings and errors go to standard error as "postconf: warning: ..." and "postconf: fatal:
// ...". The exit status is 1 after an error, else 0: an unknown name is no error. As with
// Postfix, "main.cf: undefined parameter: name" is said of a $name that has no value, and
// "main.cf: unused parameter: name=value" of a setting that nothing reads or refers to; "master.cf: ..."
// of the -o options there. An edit (-e) says it of the names that it sets, and what was likely meant.
//
// # Parameters
//
// All of them.
package postconf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"posthaste/internal/config"
)

// A Build says what the program that runs postconf was built with.
type Build struct {
	MapTypes   []string // lookup table types (-m)
	ServerSASL []string // -a
	ClientSASL []string // -A

	// Templates writes the bounce templates of file, or the built-in ones if file is
	// empty, with $name expanded if expand is set (-b and -t).
	Templates func(cfg *config.Config, file string, expand bool, w io.Writer) error
}

// command is one run of postconf.
type command struct {
	flags  map[byte]bool
	dir    string
	over   []config.Override
	class  string
	tls    string
	args   []string
	build  Build
	master []*entry // master.cf, once it has been read
	out    io.Writer
	errOut io.Writer
}

const (
	plainFlags = "aAbdeEfFhHjlmMnpPqtvxX#"
	valueFlags = "cCoT"
)

var usage = "usage: postconf [-a (server SASL types)] [-A (client SASL types)] [-b (bounce templates)] [-c config_dir] " +
	"[-C param_class] [-d (parameter defaults)] [-e (edit configuration)] [-f (fold lines)] [-F (master.cf fields)] " +
	"[-h (no names)] [-H (no values)] [-j (JSON)] [-l (lock types)] [-m (map types)] [-M (master.cf)] [-n (non-default parameters)] " +
	"[-o name=value (override parameter value)] [-p (main.cf, default)] [-P (master.cf parameters)] [-q (no warnings)] " +
	"[-t (bounce templates)] [-T compile-version|run-version|public-key-algorithms] [-v (verbose)] " +
	"[-x (expand parameter values)] [-X (exclude)] [-# (comment-out)] [name...]"

// Run runs postconf with args (without the command's name) and returns its
// exit status.
func Run(args []string, build Build, stdout, stderr io.Writer) int {
	out := &errWriter{w: stdout}
	c := &command{flags: make(map[byte]bool), class: "all", build: build, out: out, errOut: stderr}
	err := c.parse(args)
	if err == nil {
		err = c.run()
	}
	if err == nil {
		err = out.err
	}
	if err != nil {
		fmt.Fprintf(stderr, "postconf: fatal: %v\n", err)
		return 1
	}
	return 0
}

// errWriter remembers the first error, so that a full disk behind a redirection is
// not taken for success.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	var n int
	n, e.err = e.w.Write(p)
	return n, e.err
}

func (c *command) warn(format string, args ...any) {
	if !c.flags['q'] {
		fmt.Fprintf(c.errOut, "postconf: warning: "+format+"\n", args...)
	}
}

// parse reads the options. As elsewhere in the mail system an option may stand
// after an argument; "--" ends the options.
func (c *command) parse(args []string) error {
	flagDir := ""
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			c.args = append(c.args, args...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			c.args = append(c.args, arg)
			continue
		}
		for i := 1; i < len(arg); i++ {
			flag := arg[i]
			if strings.IndexByte(plainFlags, flag) >= 0 {
				c.flags[flag] = true
				continue
			}
			if strings.IndexByte(valueFlags, flag) < 0 {
				return fmt.Errorf("invalid option -%c; %s", flag, usage)
			}
			value := arg[i+1:]
			if value == "" {
				if len(args) == 0 {
					return fmt.Errorf("option -%c requires an argument; %s", flag, usage)
				}
				value, args = args[0], args[1:]
			}
			if flag == 'c' {
				flagDir = value
			} else if err := c.setValue(flag, value); err != nil {
				return err
			}
			break
		}
	}
	c.dir = config.Dir(flagDir)
	return c.checkFlags()
}

func (c *command) setValue(flag byte, value string) error {
	switch flag {
	case 'o':
		o, err := config.ParseOverride(value)
		if err != nil {
			return fmt.Errorf("invalid parameter override: %s: %w", value, err)
		}
		c.over = append(c.over, o)
	case 'C':
		for _, class := range strings.FieldsFunc(value, isClassSeparator) {
			if !slices.Contains([]string{"builtin", "service", "user", "own", "all"}, class) {
				return fmt.Errorf("unknown -C option value %q in %q", class, value)
			}
		}
		c.class = value
	case 'T':
		c.tls = value
		c.flags['T'] = true
	}
	return nil
}

func isClassSeparator(r rune) bool { return r == ',' || r == ' ' }

// checkFlags refuses options that contradict each other, and turns name=value
// arguments into edits.
func (c *command) checkFlags() error {
	for _, set := range []string{"aAbdlmMFPpTt", "aAbeXdlmntT#", "hHj", "fj", "eX#", "hM", "HM"} {
		var given []string
		for i := 0; i < len(set); i++ {
			if c.flags[set[i]] {
				given = append(given, "-"+set[i:i+1])
			}
		}
		if len(given) > 1 {
			return fmt.Errorf("specify one of %s", strings.Join(given, " "))
		}
	}
	editing := c.flags['e'] || c.flags['X'] || c.flags['#']
	query := c.flags['d'] || c.flags['n']
	if !editing && !query && slices.ContainsFunc(c.args, func(a string) bool { return strings.Contains(a, "=") }) {
		c.flags['e'] = true
		editing = true
	}
	if query && slices.ContainsFunc(c.args, func(a string) bool { return strings.Contains(a, "=") }) {
		return errors.New("options -d and -n show parameters: they do not go with name=value")
	}
	if query && (c.flags['M'] || c.flags['F'] || c.flags['P']) {
		return errors.New("options -d and -n are for main.cf: they do not go with -M, -F or -P")
	}
	if editing && (c.flags['x'] || len(c.over) > 0 || c.flags['h'] || c.flags['H'] || c.flags['j']) {
		return errors.New("options -x, -o, -h, -H and -j show parameters: they do not go with -e, -X or -#")
	}
	if i := strings.IndexFunc("aAblmTt", func(r rune) bool { return c.flags[byte(r)] }); i >= 0 && c.flags['j'] {
		return fmt.Errorf("option -j shows settings of main.cf and master.cf: it does not go with -%c", "aAblmTt"[i])
	}
	if (c.flags['F'] || c.flags['P']) && c.flags['#'] {
		return errors.New("with options -F and -P, do not specify -#")
	}
	if c.flags['F'] && c.flags['X'] {
		return errors.New("with option -F, do not specify -X")
	}
	return nil
}

func (c *command) run() error {
	edit := c.flags['e'] || c.flags['X'] || c.flags['#']
	switch {
	case c.flags['m']:
		return c.list(c.build.MapTypes)
	case c.flags['l']:
		return c.list([]string{"flock", "fcntl", "dotlock"})
	case c.flags['a']:
		return c.list(c.build.ServerSASL)
	case c.flags['A']:
		return c.list(c.build.ClientSASL)
	case c.flags['T']:
		return c.showTLS()
	case c.flags['b'], c.flags['t']:
		return c.showTemplates()
	case c.flags['M'] && edit, c.flags['F'] && edit, c.flags['P'] && edit:
		return c.editMaster()
	case c.flags['M'], c.flags['F'], c.flags['P']:
		return c.showMaster()
	case edit:
		return c.editMain()
	}
	return c.showMain()
}

func (c *command) list(names []string) error {
	for _, name := range slices.Sorted(slices.Values(names)) {
		fmt.Fprintln(c.out, name)
	}
	return nil
}

// showTLS answers -T. TLS is the language's own, so its version is the compiler's.
func (c *command) showTLS() error {
	switch c.tls {
	case "compile-version", "run-version":
		fmt.Fprintln(c.out, "Go crypto/tls", runtime.Version())
	case "public-key-algorithms":
		fmt.Fprint(c.out, "rsa\necdsa\ned25519\n")
	default:
		return fmt.Errorf("expected compile-version, run-version or public-key-algorithms after -T, found %q", c.tls)
	}
	return nil
}

func (c *command) showTemplates() error {
	if c.build.Templates == nil {
		return errors.New("this program was built without the bounce service: it has no templates")
	}
	if len(c.args) > 1 {
		return errors.New("expected at most one template file after -b or -t")
	}
	cfg, err := c.read()
	if err != nil {
		return err
	}
	file, err := cfg.Value("bounce_template_file")
	if err != nil {
		return err
	}
	if len(c.args) == 1 {
		file = c.args[0]
	}
	return c.build.Templates(cfg, file, c.flags['b'], c.out)
}

// read reads main.cf without judging its values: this is the command to repair
// them with.
func (c *command) read() (*config.Config, error) {
	c.verbose("reading %s/main.cf", c.dir)
	return config.Read(c.dir, c.over...)
}

func (c *command) verbose(format string, args ...any) {
	if c.flags['v'] {
		fmt.Fprintf(c.errOut, "postconf: "+format+"\n", args...)
	}
}

// readMaster returns master.cf's text, empty if there is none.
func (c *command) readMaster() (string, error) {
	file := c.masterFile()
	c.verbose("reading %s", file)
	text, err := os.ReadFile(file)
	return string(text), err
}

func (c *command) masterFile() string { return c.dir + "/master.cf" }
