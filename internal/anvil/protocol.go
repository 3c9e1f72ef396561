package anvil

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// greeting is what the server says first: which protocol it speaks.
const greeting = "protocol=anvil_protocol\n\n"

const (
	maxLine  = 1024            // octets of an attribute
	maxAttrs = 16              // attributes of a list
	answerIn = 5 * time.Second // how long a peer may take to read an answer, or a process of ours to give one
)

var errFailed = errors.New("it was not answered")

// requests are the words for what is asked, with the event that it counts.
var requests = map[string]Event{
	"connect": Connect, "message": Message, "recipient": Recipient, "newtls": NewTLS, "auth": Auth, "tlstr": TLSTrace,
}

// answers are the names of the attributes of an answer to lookup, in their order.
var answers = []struct {
	name  string
	event Event
}{
	{"count", Connections}, {"rate", Connect}, {"mail", Message}, {"rcpt", Recipient}, {"newtls", NewTLS}, {"auth", Auth},
}

// failed is the answer to what is not understood, or cannot be counted.
const failed = "status=-1\n\n"

// readList reads a list of attributes up to its empty line, in which each name is unique.
func readList(in *bufio.Reader) (map[string]string, error) {
	list := make(map[string]string)
	for range maxAttrs {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if len(line) == 1 {
			return list, nil
		}
		name, value, ok := strings.Cut(string(line[:len(line)-1]), "=")
		if _, twice := list[name]; !ok || twice {
			return nil, fmt.Errorf("malformed attribute: %.100q", line)
		}
		list[name] = value
	}
	return nil, fmt.Errorf("more than %d attributes", maxAttrs)
}

// readRequest reads one request. Other attributes than its two are an error, as with Postfix.
func readRequest(in *bufio.Reader) (request, ident string, err error) {
	list, err := readList(in)
	if err != nil {
		return "", "", err
	}
	request, ok := list["request"]
	ident, ok2 := list["ident"]
	if !ok || !ok2 || len(list) != 2 {
		return "", "", fmt.Errorf("expected the attributes request and ident, got %d attributes", len(list))
	}
	return request, ident, nil
}

// rates writes the answer to lookup.
func rates(c Counts) string {
	var b strings.Builder
	b.WriteString("status=0\n")
	for _, a := range answers {
		fmt.Fprintf(&b, "%s=%d\n", a.name, c[a.event])
	}
	b.WriteByte('\n')
	return b.String()
}

// converse greets a client and answers its requests until it goes away, or says what is none.
func converse(conn net.Conn, answer func(request, ident string) string) error {
	say := func(text string) error {
		_ = conn.SetWriteDeadline(time.Now().Add(answerIn)) // fails when the connection is closed; so does Write
		_, err := io.WriteString(conn, text)
		return err
	}
	if say(greeting) != nil {
		return nil // it has gone
	}
	in := bufio.NewReaderSize(conn, maxLine)
	for {
		request, ident, err := readRequest(in)
		var gone net.Error
		switch {
		case errors.Is(err, io.EOF), errors.As(err, &gone):
			return nil
		case err != nil:
			return err
		}
		if say(answer(request, ident)) != nil {
			return nil
		}
	}
}

// ask asks the process that has a socket for a client's counts.
func ask(path, ident string) (c Counts, err error) {
	conn, err := net.DialTimeout("unix", path, answerIn)
	if err != nil {
		return c, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerIn)); err != nil {
		return c, err
	}
	in := bufio.NewReaderSize(conn, maxLine)
	if list, err := readList(in); err != nil {
		return c, err
	} else if list["protocol"] != "anvil_protocol" {
		return c, errFailed
	}
	if _, err := fmt.Fprintf(conn, "request=lookup\nident=%s\n\n", ident); err != nil {
		return c, err
	}
	list, err := readList(in)
	if err != nil {
		return c, err
	}
	if list["status"] != "0" {
		return c, errFailed
	}
	for _, a := range answers {
		if c[a.event], err = strconv.Atoi(list[a.name]); err != nil {
			return c, err
		}
	}
	return c, nil
}
