package bounceclass

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/jsontext"
)

const usage = "usage: %s [-j] [-c config_dir] [-f file] [reply ...]"

// A classify is one run of the command.
type classify struct {
	cli.Tool
	configDir string
	json      bool
	files     []string
	replies   []string
}

// Command is "posthaste classify": it says what kind of failure each reply is, and which rule says so.
// Replies are arguments, or the lines of standard input. It returns the exit status.
func Command(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &classify{Tool: cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}}
	rules, err := c.open(args)
	if err != nil {
		return c.Fail(err)
	}
	out := bufio.NewWriter(stdout)
	if err := c.all(rules, out); err != nil {
		return c.Fail(err)
	}
	if err := out.Flush(); err != nil {
		return c.Fatal(cli.ExitIO, "%v", err)
	}
	return 0
}

// open reads the arguments and the rules: those of -f, else those of main.cf, else the program's own.
func (c *classify) open(args []string) (*Rules, error) {
	if err := c.parse(args); err != nil {
		return nil, err
	}
	if len(c.files) == 0 {
		cfg, err := config.Load(config.Dir(c.configDir))
		if err != nil {
			return nil, cli.Errorf(cli.ExitConfig, "%v", err)
		}
		if c.files = cfg.List("bounce_class_files"); len(c.files) == 0 {
			c.files = []string{Builtin}
		}
	}
	rules, err := Open(c.files)
	if err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%v", err)
	}
	return rules, nil
}

func (c *classify) parse(args []string) error {
	opts, rest, err := cli.Getopt(args, "c:f:j")
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%w; "+usage, err, c.Name)
	}
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			c.configDir = o.Value
		case 'f':
			c.files = append(c.files, o.Value)
		case 'j':
			c.json = true
		}
	}
	c.replies = rest
	return nil
}

// all classifies the replies.
func (c *classify) all(rules *Rules, out io.Writer) error {
	if len(c.replies) > 0 {
		for _, reply := range c.replies {
			c.say(rules, out, reply)
		}
		return nil
	}
	lines := bufio.NewScanner(c.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" {
			c.say(rules, out, line)
		}
	}
	if err := lines.Err(); err != nil {
		return cli.Errorf(cli.ExitNoInput, "standard input: %v", err)
	}
	return nil
}

// say prints one reply, its class, and the rule: its file and its expression.
func (c *classify) say(rules *Rules, out io.Writer, reply string) {
	text := Text(reply)
	rule, ok := rules.Match(text)
	if !ok {
		rule.Class = Uncategorized
	}
	switch {
	case c.json:
		fmt.Fprintln(out, jsontext.Object("class", rule.Class, "file", rule.File, "pattern", rule.Pattern, "text", text))
	case ok:
		fmt.Fprintf(out, "%-20s %s: %s\n", rule.Class, rule.File, rule.Pattern)
	default:
		fmt.Fprintf(out, "%-20s no rule\n", rule.Class)
	}
}
