package sasl

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

const passwdUsage = `usage: posthaste passwd [-c] [user]
reads a password from standard input and prints an entry for a table of users:
"user secret", or the secret alone without user. -c reads "user secret" lines
of an existing table and says whether they are well-formed.
`

// Passwd is the passwd command. Passwords are read, never taken from the
// command line, which others can see. The exit status is 0, or 1 when
// something is wrong.
func Passwd(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "-c" {
		return checkEntries(stdin, stdout, stderr)
	}
	if len(args) > 1 || len(args) == 1 && (strings.HasPrefix(args[0], "-") || strings.ContainsAny(args[0], " \t\n")) {
		fmt.Fprint(stderr, passwdUsage)
		return 1
	}
	line, err := bufio.NewReader(io.LimitReader(stdin, 2*maxPassword)).ReadString('\n')
	if err != nil && err != io.EOF {
		fmt.Fprintf(stderr, "passwd: read password: %v\n", err)
		return 1
	}
	secret, err := NewSecret(strings.TrimRight(line, "\r\n"))
	if err != nil {
		fmt.Fprintf(stderr, "passwd: %v\n", err)
		return 1
	}
	if len(args) == 1 {
		user, ok := prepare(args[0])
		if !ok {
			fmt.Fprintf(stderr, "passwd: %q cannot be a user's name: expected UTF-8 without control characters (RFC 4013)\n", args[0])
			return 1
		}
		fmt.Fprintf(stdout, "%s %s\n", user, secret)
	} else {
		fmt.Fprintln(stdout, secret)
	}
	return 0
}

// checkEntries says which entries of a table of users cannot be used.
func checkEntries(stdin io.Reader, stdout, stderr io.Writer) int {
	bad, good := 0, 0
	sc := bufio.NewScanner(stdin)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, secret, _ := strings.Cut(line, " ")
		if _, err := ParseSecret(secret); err != nil {
			fmt.Fprintf(stderr, "passwd: line %d: user %s: %v\n", n, user, err)
			bad++
			continue
		}
		good++
	}
	if err := sc.Err(); err != nil {
		fmt.Fprintf(stderr, "passwd: %v\n", err)
		return 1
	}
	fmt.Fprintf(stdout, "%d entries are well-formed\n", good)
	if bad > 0 {
		return 1
	}
	return 0
}
