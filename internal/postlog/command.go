package postlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
)

const usage = "usage: postlog [-c config_dir] [-i] [-p priority] [-t tag] [-v] [text...]"

// Command is the postlog command: it logs its arguments as one line, or,
// without arguments, each line of stdin. Options:
//
//	-c dir       configuration directory
//	-i           accepted: the process ID is always logged
//	-p priority  info (default), warn, error, fatal or panic
//	-t tag       the tag instead of syslog_name/postlog
//	-v           accepted
//
// Lines go to stderr as well when that is a terminal. It returns the exit
// status.
//
// It is not set-gid, since it is the program that all services are: with
// maillog_file set it is for root, mail_owner and members of setgid_group.
func Command(args []string, stdin io.Reader, stderr io.Writer) int {
	o, err := parseArgs(args)
	if err != nil {
		fmt.Fprintf(stderr, "postlog: fatal: %v\n%s\n", err, usage)
		return 1
	}
	cfg, err := config.ReadFor(config.Dir(o.dir), append(maillog.Parameters(), "mail_owner", "setgid_group")...)
	if err != nil {
		fmt.Fprintf(stderr, "postlog: fatal: %v\n", err)
		return 1
	}
	if o.tag == "" {
		if o.tag = os.Getenv("MAIL_LOGTAG"); o.tag == "" {
			o.tag = maillog.Tag(cfg, "postlog")
		}
	}
	lines := o.text
	if len(lines) == 0 {
		if lines, err = readLines(stdin); err != nil {
			fmt.Fprintf(stderr, "postlog: fatal: read standard input: %v\n", err)
			return 1
		}
	}
	if isTerminal(stderr) {
		for _, line := range lines {
			fmt.Fprintf(stderr, "postlog: %s\n", maillog.AppendClean(nil, []byte(line)))
		}
	}
	// Without a running mail system, who may write the file writes it.
	if err = o.write(cfg, maillog.Open, lines); err != nil {
		err = whoMay(cfg, o.write(cfg, maillog.OpenDirect, lines))
	}
	if err != nil {
		fmt.Fprintf(stderr, "postlog: fatal: %v\n", err)
		return 1
	}
	return 0
}

// whoMay adds to an error who may log, for a user who may not.
func whoMay(cfg *config.Config, err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w; the postlog service, which writes it, takes lines from root, %s and members of the group %s: others can log to syslog with logger(1)",
		err, cfg.String("mail_owner"), cfg.String("setgid_group"))
}

// options are those of the command line.
type options struct {
	dir, tag string
	level    maillog.Level
	text     []string // the line made of the arguments; none: standard input
}

var levels = map[string]maillog.Level{
	"info": maillog.LevelInfo, "warn": maillog.LevelWarning, "warning": maillog.LevelWarning,
	"error": maillog.LevelError, "fatal": maillog.LevelFatal, "panic": maillog.LevelPanic,
}

func parseArgs(args []string) (o options, err error) {
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		flag := args[0]
		args = args[1:]
		if flag == "--" {
			break
		}
		if strings.Trim(flag[1:], "iv") == "" {
			continue
		}
		value := flag[2:]
		if value == "" {
			if len(args) == 0 {
				return o, fmt.Errorf("option %s: expected a value", flag)
			}
			value, args = args[0], args[1:]
		}
		switch flag[1] {
		case 'c':
			o.dir = value
		case 't':
			o.tag = value
		case 'p':
			level, ok := levels[strings.ToLower(value)]
			if !ok {
				return o, fmt.Errorf("unknown priority %q: expected info, warn, error, fatal or panic", value)
			}
			o.level = level
		default:
			return o, fmt.Errorf("unknown option %s", flag[:2])
		}
	}
	if len(args) > 0 {
		o.text = []string{strings.Join(args, " ")}
	}
	return o, nil
}

func (o *options) write(cfg *config.Config, open func(*config.Config, string) (*maillog.Logger, error), lines []string) error {
	log, err := open(cfg, "postlog")
	if err != nil {
		return err
	}
	tagged := log.With(o.tag)
	for _, line := range lines {
		tagged.Text(o.level, line)
	}
	return log.Close()
}

// readLines reads all lines, at most 64 KB each.
func readLines(r io.Reader) (lines []string, err error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	return lines, s.Err()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
