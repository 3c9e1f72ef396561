package postmulti

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const usage = "usage: postmulti -l [-ajRv] [-g group] [-i name] | -p [-av] [-g group] [-i name] command ... | " +
	"-x [-aRv] [-g group] [-i name] program ... | -e init|create|import|destroy|deport|enable|disable|assign [-av] " +
	"[-g group] [-i name] [-G group] [-I name] [parameter=value ...]"

// options are the command line.
type options struct {
	dir            string
	mode           byte   // l, p, x or e
	action         string // of -e
	group, name    string
	newGroup       *string // -G
	newName        *string // -I
	front, reverse bool
	verbose        bool
	json           bool     // with -l
	words          []string // a command, or parameter=value
}

var actions = []string{"init", "create", "import", "destroy", "deport", "enable", "disable", "assign"}

func parse(args []string) (*options, error) {
	o := &options{}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		for k := 1; k < len(arg); k++ {
			if !strings.ContainsRune("cegiGI", rune(arg[k])) {
				if err := o.flag(arg[k]); err != nil {
					return nil, err
				}
				continue
			}
			value := arg[k+1:]
			if value == "" {
				if len(args) == 0 {
					return nil, fmt.Errorf("-%c: expected a value\n%s", arg[k], usage)
				}
				value, args = args[0], args[1:]
			}
			if err := o.value(arg[k], value); err != nil {
				return nil, err
			}
			break
		}
	}
	o.words = args
	return o, o.check()
}

func (o *options) flag(letter byte) error {
	switch letter {
	case 'a':
		o.front = true
	case 'R':
		o.reverse = true
	case 'j':
		o.json = true
	case 'v':
		o.verbose = true
	case 'l', 'p', 'x':
		return o.setMode(letter)
	default:
		return fmt.Errorf("unknown option: -%c\n%s", letter, usage)
	}
	return nil
}

func (o *options) setMode(letter byte) error {
	if o.mode != 0 {
		return errors.New("specify one of -e, -l, -p, -x")
	}
	o.mode = letter
	return nil
}

func (o *options) value(letter byte, v string) error {
	switch letter {
	case 'c':
		o.dir = v
	case 'e':
		if !slices.Contains(actions, v) {
			return fmt.Errorf("-e %s: expected one of %s", v, strings.Join(actions, ", "))
		}
		o.action = v
		return o.setMode('e')
	case 'g':
		o.group = v
	case 'i':
		o.name = v
	case 'G', 'I':
		if v == "-" {
			v = ""
		}
		if letter == 'G' {
			o.newGroup = &v
			break
		}
		if v != "" && !strings.HasPrefix(v, "postfix-") && !strings.HasPrefix(v, "posthaste-") {
			return fmt.Errorf("-I %s: an instance's name begins with posthaste- or postfix-", v)
		}
		if strings.ContainsAny(v, "/ \t\r\n,$") {
			return fmt.Errorf("-I %q: not a name", v)
		}
		o.newName = &v
	}
	return nil
}

func (o *options) check() error {
	switch {
	case o.mode == 0:
		return errors.New(usage)
	case (o.mode == 'p' || o.mode == 'x') && len(o.words) == 0:
		return fmt.Errorf("-%c: expected a command", o.mode)
	case o.mode == 'p' && o.reverse:
		return errors.New("-R: not with -p, where the command says what the order is")
	case o.mode != 'e' && (o.newGroup != nil || o.newName != nil):
		return errors.New("-G and -I go with -e")
	case o.json && o.mode != 'l':
		return errors.New("-j: only with -l")
	case o.mode == 'l' && len(o.words) > 0:
		return fmt.Errorf("unexpected argument: %s", o.words[0])
	case o.mode == 'e' && o.action != "create" && o.action != "import" && len(o.words) > 0:
		return fmt.Errorf("-e %s: unexpected argument: %s", o.action, o.words[0])
	}
	return nil
}
