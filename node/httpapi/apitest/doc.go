// Package apitest checks handlers against the OpenAPI document of httpapi, and against exchanges that were recorded
// with other implementations. A [Door] is a listener for tests that send floods of requests.
//
// This package is for tests only. Wrap a handler with [Check], or pass what a client saw to [Compare]. Run recorded
// exchanges with [Read] and [Exchange.Replay].
package apitest
