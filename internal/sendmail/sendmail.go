// Package sendmail is the sendmail(1) command: the program by which everything
// on a machine sends its mail, also under the names mailq and newaliases. It
// is Postfix's, option for option.
//
// Mail is not handed to a server. It is put into the maildrop directory by
// postdrop, which has the right to do so, whether the mail system runs or not;
// pickup is woken, and takes it when it is there.
//
// With -bv nothing is delivered and nothing is read: the caller gets a report of
// what would become of mail for these recipients. With -v mail is delivered, and
// he gets a report of the first attempt.
//
// # Security
//
// It runs as whoever calls it, with input from anywhere. It holds one line of
// the message in memory, of bounded length, and with -t the header, up to 16 MiB.
// A field that names recipients may have header_size_limit octets. A message whose
// field is longer is refused (75): no recipient is left out.
//
// # Parameters
//
// queue_directory, command_directory, message_size_limit, header_size_limit,
// verp_delimiter_filter, default_verp_delimiters.
//
// # Diagnostics
//
// The exit status is one of sysexits.h: 0 queued, 65 malformed
// input, 69 not queued, 71 system error, 73 cannot write, 75 try again, 77 not
// permitted, 78 wrong configuration. A wrong command line, and a message without
// recipients, are 75 too, as with Postfix: the caller keeps the message.
package sendmail

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/whoami"
)

// Exit statuses of sysexits.h.
const (
	ExitOK          = 0
	ExitDataErr     = 65
	ExitUnavailable = 69
	ExitSoftware    = 70
	ExitOSErr       = 71
	ExitTempFail    = 75
	ExitNoPerm      = 77
	ExitConfig      = 78
)

// A Command is one run of the program.
type Command struct {
	// Name is what the program is called by: sendmail, mailq, newaliases.
	Name   string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Tools run what some options stand for, with the configuration
	// directory that -C or the environment says, and return exit statuses.
	Mailq      func(configDir string) int
	Newaliases func(configDir string) int
	Flush      func(configDir string, args []string) int // postqueue's -f, -i ID or -s SITE
	Daemon     func(configDir string) int                // -bd: start the mail system
	Session    func(configDir string) int                // -bs: SMTP on standard input and output
}

// mode is what -b says.
type mode byte

const (
	modeDeliver    mode = 'm'
	modeMailq      mode = 'p'
	modeNewaliases mode = 'i'
	modeDaemon     mode = 'd'
	modeSession    mode = 's'
	modeVerify     mode = 'v'
	modeFlush      mode = 'q'
	modeIgnore     mode = 'h'
)

// String is the option that chooses the mode.
func (m mode) String() string {
	if m == modeFlush {
		return "-q"
	}
	return "-b" + string(rune(m))
}

// options are what the command line says.
type options struct {
	mode       mode
	configDir  string
	flush      []string // postqueue's arguments
	sender     string
	hasSender  bool
	extract    bool // -t
	dotIsData  bool // -i
	notify     dsn.Notify
	header     maildrop.Header
	recipients []string
	ignored    []string // warnings of values that are not heeded
}

// failure is an error with the exit status that it leads to.
type failure struct {
	status int
	text   string
}

func (f failure) Error() string { return f.text }

func failf(status int, format string, args ...any) error {
	return failure{status, fmt.Sprintf(format, args...)}
}

// Run carries out the command and returns the exit status.
func (c *Command) Run(args []string) int {
	o := &options{mode: modeDeliver}
	switch c.Name {
	case "mailq":
		o.mode = modeMailq
	case "newaliases":
		o.mode = modeNewaliases
	}
	err := o.parse(args)
	for _, w := range o.ignored {
		fmt.Fprintf(c.Stderr, "%s: warning: %s\n", c.Name, w)
	}
	if err == nil {
		var status int
		if status, err = c.dispatch(o); err == nil {
			return status
		}
	}
	f, ok := err.(failure)
	if !ok {
		f = failure{ExitUnavailable, err.Error()}
	}
	fmt.Fprintf(c.Stderr, "%s: fatal: %s\n", c.Name, f.text)
	return f.status
}

func (c *Command) dispatch(o *options) (status int, err error) {
	switch o.mode {
	case modeIgnore:
		return ExitOK, nil
	case modeDeliver, modeVerify:
		return ExitOK, c.deliver(o)
	}
	if len(o.recipients) > 0 || o.extract {
		return 0, failf(ExitTempFail, "%s: cannot be combined with recipients or -t", o.mode)
	}
	switch o.mode {
	case modeMailq:
		status = c.Mailq(o.configDir)
	case modeNewaliases:
		status = c.Newaliases(o.configDir)
	case modeDaemon:
		status = c.Daemon(o.configDir)
	case modeSession:
		status = c.Session(o.configDir)
	case modeFlush:
		status = c.Flush(o.configDir, o.flush)
	}
	return status, nil
}

// withValue are the options that take a value, attached or as the next word.
const withValue = "ABCFLNOoRVXbefhpr"

// parse reads the command line. Options that only mean something to Sendmail
// itself are accepted and have no effect, as with Postfix.
func (o *options) parse(args []string) error {
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			o.recipients = append(o.recipients, args[i+1:]...)
			return nil
		}
		if len(a) < 2 || a[0] != '-' {
			o.recipients = append(o.recipients, args[i:]...)
			return nil
		}
		if err := o.word(a[1:], func() (string, bool) {
			if i+1 == len(args) {
				return "", false
			}
			i++
			return args[i], true
		}); err != nil {
			return err
		}
	}
	return nil
}

// word reads one word of options; next gives the word after it.
func (o *options) word(w string, next func() (string, bool)) error {
	for len(w) > 0 {
		letter := w[0]
		w = w[1:]
		switch {
		case letter == 'q':
			return o.setFlush(w, next)
		case strings.IndexByte(withValue, letter) >= 0:
			if w == "" {
				var ok bool
				if w, ok = next(); !ok {
					return failf(ExitTempFail, "option -%c requires a value", letter)
				}
			}
			return o.set(letter, w)
		default:
			if err := o.flag(letter); err != nil {
				return err
			}
		}
	}
	return nil
}

// setFlush reads what follows -q: nothing (the whole queue), I and a queue
// ID, R and a site; an interval means nothing without -bd.
func (o *options) setFlush(w string, next func() (string, bool)) error {
	var ok bool
	switch {
	case w == "":
		o.mode, o.flush = modeFlush, []string{"-f"}
	case w[0] == 'I' || w[0] == 'R':
		value := w[1:]
		if value == "" {
			if value, ok = next(); !ok {
				return failf(ExitTempFail, "option -q%c requires a value", w[0])
			}
		}
		flag := "-i"
		if w[0] == 'R' {
			flag = "-s"
		}
		o.mode, o.flush = modeFlush, []string{flag, value}
	case w[0] >= '0' && w[0] <= '9':
		if o.mode == modeDeliver {
			o.mode = modeIgnore
		}
	default:
		return failf(ExitTempFail, "-q%s is not implemented", w)
	}
	return nil
}

// flag sets an option without a value.
func (o *options) flag(letter byte) error {
	switch letter {
	case 'G':
		o.header.Flags |= maildrop.Gateway
	case 'I':
		o.mode = modeNewaliases
	case 'i':
		o.dotIsData = true
	case 't':
		o.extract = true
	case 'v':
		o.header.Trace |= mail.TraceRecord
	case 'c', 'm', 'U', 'x':
	case 'n':
		return failf(ExitTempFail, "-n: not supported: aliases cannot be turned off")
	default:
		return failf(ExitTempFail, "unknown option -%c", letter)
	}
	return nil
}

// set sets an option with a value.
func (o *options) set(letter byte, v string) error {
	switch letter {
	case 'B':
		switch strings.ToUpper(v) {
		case "8BITMIME":
			o.header.Body8Bit = true
		case "7BIT":
		default:
			return failf(ExitTempFail, "-B %s: expected 7BIT or 8BITMIME", v)
		}
	case 'C':
		o.configDir = v
		if strings.HasSuffix(v, "main.cf") || strings.HasSuffix(v, ".cf") {
			o.configDir = v[:strings.LastIndexByte("/"+v, '/')]
		}
	case 'F':
		o.header.FullName = v
	case 'N':
		notify, err := dsn.ParseNotify(v)
		if err != nil {
			o.ignore("-N %q: expected never, or a list of delay, failure and success", v)
			break
		}
		o.notify = notify
	case 'R':
		ret, err := dsn.ParseRet(v)
		if err != nil {
			o.ignore("-R %q: expected full or hdrs", v)
			break
		}
		o.header.Ret = ret
	case 'V':
		o.setEnvID(v)
	case 'X':
		if delimiters, ok := strings.CutPrefix(v, "V"); ok {
			return o.setVERP(delimiters)
		}
	case 'b':
		return o.setMode(v)
	case 'f', 'r':
		o.sender, o.hasSender = v, true
	case 'O':
		return o.setLong(v)
	case 'o':
		if v == "i" {
			o.dotIsData = true
		}
	}
	return nil
}

// ignore warns of a value that only says what notices the sender wants: the
// message is sent without.
func (o *options) ignore(format string, args ...any) {
	o.ignored = append(o.ignored, fmt.Sprintf(format, args...)+"; it is ignored")
}

func (o *options) setEnvID(v string) {
	if v == "" || len(v) > 100 || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > 126 }) {
		o.ignore("-V %q: expected an envelope ID of at most 100 printable characters", v)
		return
	}
	o.header.EnvID = v
}

// setVERP reads the delimiters of -XV; without them the default counts.
func (o *options) setVERP(v string) error {
	if v == "" {
		v = "default"
	} else if len(v) != 2 {
		return failf(ExitTempFail, "-XV%s: VERP needs two delimiter characters", v)
	}
	o.header.VERP = v
	return nil
}

func (o *options) setMode(v string) error {
	switch letter := (v + " ")[0]; letter {
	case 'm', 's', 'p', 'i', 'd':
		o.mode = mode(letter)
	case 'l':
		o.mode = modeDaemon
	case 'h', 'H':
		o.mode = modeIgnore
	case 'v':
		o.mode = modeVerify
		o.header.Trace |= mail.TraceReport
	default:
		return failf(ExitTempFail, "-b%s: unknown mode", v)
	}
	return nil
}

// setLong reads Sendmail's -O name=value; most have no meaning here.
func (o *options) setLong(v string) error {
	name, value, ok := strings.Cut(v, "=")
	if ok && strings.EqualFold(strings.TrimSpace(name), "smtputf8") {
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "yes", "true", "1":
			o.header.SMTPUTF8 = true
		}
	}
	return nil
}

// loginName is the calling user's name, by which mail is sent without -f.
func loginName(who whoami.User) string {
	if who.Name != "" {
		return who.Name
	}
	return strconv.Itoa(os.Getuid())
}

// fullName is the calling user's full name: what the password file says up to
// the first comma, "&" standing for the login name.
func fullName(who whoami.User) string {
	if n := os.Getenv("NAME"); n != "" {
		return n
	}
	name, _, _ := strings.Cut(who.Gecos, ",")
	if who.Name != "" {
		name = strings.ReplaceAll(name, "&", strings.ToUpper(who.Name[:1])+who.Name[1:])
	}
	return name
}
