package account

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// maxLine bounds what is read of a password.
const maxLine = 4096

// A passwordReader asks for the new password of a user.
type passwordReader func(user string) (string, error)

// passwordsFrom asks on a terminal, and reads a line of anything else.
func passwordsFrom(stdin io.Reader, stderr io.Writer) passwordReader {
	if f, ok := stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return func(user string) (string, error) { return ask(f, stderr, user) }
	}
	return func(string) (string, error) {
		line, err := bufio.NewReader(io.LimitReader(stdin, maxLine)).ReadString('\n')
		if err != nil && (err != io.EOF || line == "") {
			return "", fmt.Errorf("read the password from standard input: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
}

// ask asks twice, without echo.
func ask(tty *os.File, prompt io.Writer, user string) (string, error) {
	var answers [2]string
	for i, text := range [...]string{"Password of " + user + ": ", "The same again: "} {
		fmt.Fprint(prompt, text)
		b, err := term.ReadPassword(int(tty.Fd()))
		fmt.Fprintln(prompt)
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		answers[i] = string(b)
	}
	if answers[0] != answers[1] {
		return "", errors.New("the two passwords differ")
	}
	return answers[0], nil
}
