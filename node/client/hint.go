package client

import "errors"

// HintOf returns what the owner can do about an error of a directory, or "".
func HintOf(err error) string {
	type hinter interface {
		error
		Hint() string
	}
	if e, ok := errors.AsType[hinter](err); ok {
		return e.Hint()
	}
	return ""
}
