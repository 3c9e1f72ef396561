package pipe

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"posthaste/internal/rights"
	"posthaste/local/users"
)

// attributes is what master.cf says of the command.
type attributes struct {
	argv       []string
	rights     rights.Rights
	directory  string
	chroot     string
	eol        string
	nullSender string
	size       int64 // 0: no limit
	flags      string
}

// allFlags are those that flags= may have.
const allFlags = "BDFORXhqu.>"

func (a *attributes) has(flags ...byte) bool {
	for _, f := range flags {
		if strings.IndexByte(a.flags, f) >= 0 {
			return true
		}
	}
	return false
}

// parse reads the words after the program's name.
func (a *attributes) parse(args []string, db users.Database, mailOwner string) error {
	a.eol, a.nullSender = "\n", "MAILER-DAEMON"
	user := ""
	for i, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("expected name=value, found %q", arg)
		}
		if name == "argv" {
			if a.argv = args[i+1:]; value != "" {
				a.argv = append([]string{value}, a.argv...)
			}
			break
		}
		if name == "user" {
			user = value
		} else if err := a.set(name, value); err != nil {
			return err
		}
	}
	if user == "" {
		return errors.New("expected user=NAME: the user as whom the command runs")
	}
	if len(a.argv) == 0 {
		return errors.New("expected argv=COMMAND as the last attribute")
	}
	var err error
	a.rights, err = users.Named(user, db, mailOwner)
	return err
}

func (a *attributes) set(name, value string) (err error) {
	switch name {
	case "directory":
		a.directory = value
	case "chroot":
		a.chroot = value
	case "null_sender":
		a.nullSender = value
	case "eol":
		a.eol, err = unescape(value)
	case "size":
		if a.size, err = strconv.ParseInt(value, 10, 64); err != nil || a.size < 0 {
			return fmt.Errorf("size=%s: expected a number of bytes", value)
		}
	case "flags":
		for _, f := range value {
			if !strings.ContainsRune(allFlags, f) {
				return fmt.Errorf("flags=%s: %q is none of %s", value, f, allFlags)
			}
		}
		a.flags = value
	default:
		return fmt.Errorf("attribute %q is not known; there are argv, chroot, directory, eol, flags, null_sender, size and user", name)
	}
	return err
}

// unescape undoes C escapes: \n \r \t \\ \a \b \f \v and up to three octal digits.
func unescape(s string) (string, error) {
	const names, values = `abfnrtv\`, "\a\b\f\n\r\t\v\\"
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", fmt.Errorf("eol=%s: nothing follows the last backslash", s)
		}
		if k := strings.IndexByte(names, s[i]); k >= 0 {
			b = append(b, values[k])
			continue
		}
		n := 0
		for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
			n++
		}
		v, err := strconv.ParseUint(s[i:i+n], 8, 8)
		if err != nil {
			return "", fmt.Errorf("eol=%s: \\%c is not an escape", s, s[i])
		}
		b = append(b, byte(v))
		i += n - 1
	}
	return string(b), nil
}
