//go:build poison

package reuse

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Poison says whether this build overwrites what was given back: this one does.
const Poison = true

const (
	// pattern is what octets are overwritten with, and every octet of a number. No ASCII
	// text has it, and a length or an index made of it is far out of bounds.
	pattern = 0xdb
	// word is what a string is overwritten with.
	word = "\xdb(given back to be used again)\xdb"
	// ward is how many values are kept aside, the last ones that were given back.
	ward = 16
)

// quarantine keeps the values that were given back last, poisoned.
type quarantine[T any] struct {
	mu     sync.Mutex
	values []patient[T] // the oldest first
}

// patient is a value that was given back.
type patient[T any] struct {
	v    *T
	was  T // what *v was: it has the memory that goes to the next owner
	must T // what *v is now, if nobody has written to it
}

// hold poisons v and keeps it.
func (q *quarantine[T]) hold(v *T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if slices.ContainsFunc(q.values, func(p patient[T]) bool { return p.v == v }) {
		panic(fmt.Sprintf("reuse: %T %p is given back twice", v, v))
	}
	p := patient[T]{v: v, was: *v}
	fill(reflect.ValueOf(v).Elem(), true)
	p.must = *v
	q.values = append(q.values, p)
}

// release returns the value that has been kept longest, as it was given back, once
// there are enough others. Nil means to make a new one.
func (q *quarantine[T]) release() *T {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.values) <= ward {
		return nil
	}
	p := q.values[0]
	q.values = slices.Delete(q.values, 0, 1)
	if !reflect.DeepEqual(p.v, &p.must) || !intact(reflect.ValueOf(&p.was).Elem()) {
		panic(fmt.Sprintf("reuse: %T %p was written to after it was given back", p.v, p.v))
	}
	cleanse(reflect.ValueOf(&p.was).Elem())
	*p.v = p.was
	return p.v
}

// spoil poisons the memory of buf for good, and returns other memory of the same size.
func spoil[S ~[]T, T any](buf S) S {
	if buf == nil {
		return nil
	}
	fillAll(reflect.ValueOf(buf))
	return make(S, 0, cap(buf))
}

// settable is v, so that it can be set although its field may not be exported.
func settable(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

// passedOver are the types that are let be: locks and counters, which a goroutine that is
// late would wait at for ever instead of being found, and what keeps values here.
func passedOver(t reflect.Type) bool {
	switch p := t.PkgPath(); {
	case p == "sync", p == "sync/atomic":
		return true
	case p == reflect.TypeFor[quarantine[int]]().PkgPath():
		return strings.HasPrefix(t.Name(), "Pool[") || strings.HasPrefix(t.Name(), "Free[")
	}
	return false
}

// fill poisons v, and with deep the memory of the slices in its fields. What the elements of
// a list point to is not the list's.
func fill(v reflect.Value, deep bool) {
	if passedOver(v.Type()) {
		return
	}
	switch v = settable(v); v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), deep)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), deep)
		}
	case reflect.String:
		v.SetString(word)
	case reflect.Bool, reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer:
		v.SetZero()
	case reflect.Slice:
		if deep {
			fillAll(v)
		}
		v.SetZero()
	default: // numbers
		octets := unsafe.Slice((*byte)(v.Addr().UnsafePointer()), v.Type().Size())
		for i := range octets {
			octets[i] = pattern
		}
	}
}

// fillAll poisons all elements that a slice has room for.
func fillAll(v reflect.Value) {
	if v.Cap() == 0 {
		return
	}
	v = v.Slice(0, v.Cap())
	if v.Type().Elem().Kind() == reflect.Uint8 {
		b := unsafe.Slice((*byte)(v.UnsafePointer()), v.Len())
		for i := range b {
			b[i] = pattern
		}
		return
	}
	for i := range v.Len() {
		fill(v.Index(i), false)
	}
}

// intact says whether the memory of the slices in v is still poisoned.
func intact(v reflect.Value) bool {
	if passedOver(v.Type()) {
		return true
	}
	switch v = settable(v); v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !intact(v.Field(i)) {
				return false
			}
		}
	case reflect.Array:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Array || k == reflect.Slice {
			for i := range v.Len() {
				if !intact(v.Index(i)) {
					return false
				}
			}
		}
	case reflect.Slice:
		if v.Cap() == 0 {
			return true
		}
		must := reflect.New(v.Type().Elem()).Elem()
		fill(must, false)
		v = v.Slice(0, v.Cap())
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := unsafe.Slice((*byte)(v.UnsafePointer()), v.Len())
			return !slices.ContainsFunc(b, func(c byte) bool { return c != pattern })
		}
		for i := range v.Len() {
			if !reflect.DeepEqual(settable(v.Index(i)).Addr().Interface(), must.Addr().Interface()) {
				return false
			}
		}
	}
	return true
}

// cleanse makes the memory of the lists in v zero, as Emptied leaves it. Buffers of
// octets keep the poison: whoever reads more than was written finds it.
func cleanse(v reflect.Value) {
	if passedOver(v.Type()) {
		return
	}
	switch v = settable(v); v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			cleanse(v.Field(i))
		}
	case reflect.Array:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Array || k == reflect.Slice {
			for i := range v.Len() {
				cleanse(v.Index(i))
			}
		}
	case reflect.Slice:
		if v.Cap() > 0 && v.Type().Elem().Kind() != reflect.Uint8 {
			v.Slice(0, v.Cap()).Clear()
		}
	}
}
