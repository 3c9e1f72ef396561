package postmap

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"posthaste/internal/jsontext"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// query looks keys up. One key gives its value; keys from the standard input
// give key and value.
func (c *command) query(files []string, key string) (err error) {
	tables, err := c.open(files)
	if err != nil {
		return err
	}
	defer func() {
		for _, t := range tables {
			err = errors.Join(err, t.Close())
		}
	}()
	out := bufio.NewWriter(c.stdout)
	found := 0
	show := func(key string, alone bool) error {
		value, ok, err := lookup(tables, key)
		if err != nil {
			return fmt.Errorf("lookup of %q: %w", key, err)
		}
		if !ok {
			return nil
		}
		found++
		if c.opt.files {
			b, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				return fmt.Errorf("the value of %q is not base64: %w", key, err)
			}
			value = string(b)
		}
		switch {
		case c.opt.json:
			_, err = out.WriteString(jsontext.Object(key, value) + "\n")
		case c.opt.files && alone:
			_, err = out.WriteString(value)
		case alone:
			_, err = out.WriteString(value + "\n")
		default:
			_, err = out.WriteString(key + c.syntax.separator() + value + "\n")
		}
		return err
	}
	switch {
	case c.opt.header || c.opt.body:
		err = c.message(show)
	case key == "-":
		var keys []string
		keys, err = c.keys(key)
		for _, k := range keys {
			if err == nil {
				err = show(k, false)
			}
		}
	default:
		err = show(key, true)
	}
	if err = errors.Join(err, out.Flush()); err == nil && found == 0 {
		c.failures++
	}
	return err
}

func (c *command) open(files []string) ([]table.Table, error) {
	var tables []table.Table
	for _, f := range files {
		t, err := table.Open(c.spec(f), c.tables())
		if err != nil {
			for _, t := range tables {
				err = errors.Join(err, t.Close())
			}
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// message takes the standard input as a message and shows what its header
// fields and body lines are found as.
func (c *command) message(show func(key string, alone bool) error) error {
	text, err := io.ReadAll(c.stdin)
	if err != nil {
		return err
	}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	mime := rfc5322.Structure{MaxDepth: 100, MaxBoundary: 2048}
	header := true
	for len(text) > 0 {
		if header {
			f, rest, ok := rfc5322.NextField(text)
			if ok {
				text = rest
				mime.Field(f)
				if c.opt.header {
					if err := show(string(f.Lines()), false); err != nil {
						return err
					}
				}
				continue
			}
			header = mime.EndOfHeader() && c.opt.mime
			text = bytes.TrimPrefix(text, []byte("\n"))
			if header {
				continue
			}
		}
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		if c.opt.mime {
			_, header = mime.Boundary(line)
		}
		if c.opt.body {
			if err := show(string(line), false); err != nil {
				return err
			}
		}
	}
	return nil
}

// dump lists tables.
func (c *command) dump(files []string) error {
	out := bufio.NewWriter(c.stdout)
	for _, f := range files {
		e := newEntries()
		if err := c.read(c.spec(f), e); err != nil {
			return err
		}
		for _, key := range e.keys {
			value := e.values[key]
			line := key + c.syntax.separator() + value + "\n"
			if c.opt.json {
				line = jsontext.Object(key, value) + "\n"
			}
			if _, err := out.WriteString(line); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}
