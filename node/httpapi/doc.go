// Package httpapi is the HTTP server layer that every service shares. It is the only package that configures echo.
//
// A service mounts its routes on [Server.Echo] and returns errors. This package turns an error into the error body of
// the specification (AM-27, AM-28), the status and the log line. It also
//
//   - reads JSON bodies without parsing them ([Body]) and writes JSON ([JSON], [Raw]);
//   - identifies the client of a request ([ClientAddr]);
//   - applies the limits of the listener: time-outs and sizes (AM-76), numbers of connections, the loopback-only hosts
//     and cross-origin checks of the local profile (AM-82), and the limit per address ([Addresses], AM-43).
//
// [Owner] is the second listener, for the owner alone (AM-77). openapi.yaml describes the public routes of all
// services; [OpenAPI] returns it.
//
// This package knows nothing of messages and cards. Of the store, it knows only the errors. A handler has five
// steps: decode, authenticate, authorize, act, respond. Keep handlers that small, so that another router can replace
// echo.
//
// Start with [New] and [Server.Serve].
package httpapi
