#!/usr/bin/env escript
%% SPDX-License-Identifier: Apache-2.0
%% Usage: echo.escript server PLACE | echo.escript client PLACE CONNECTIONS BYTES; a port, or a path

main(["server", Place]) ->
    {Address, Port} = place(Place),
    {ok, Listener} = gen_tcp:listen(Port, [binary, {ifaddr, Address}, {active, false},
                                           {backlog, 128}, {reuseaddr, true}, {exit_on_close, false}]),
    accept(Listener);
main(["client", Place, Connections, Bytes]) ->
    {Address, Port} = place(Place),
    Self = self(),
    Numbers = lists:seq(0, list_to_integer(Connections) - 1),
    [spawn_link(fun() -> Self ! ask(Address, Port, N * list_to_integer(Bytes)) end) || N <- Numbers],
    Right = lists:sum([receive R -> R end || _ <- Numbers]),
    io:format("~b echoes~n", [Right]).

place([$/ | _] = Path) -> {{local, Path}, 0};
place(Port) -> {{127, 0, 0, 1}, list_to_integer(Port)}.

accept(Listener) ->
    {ok, There} = gen_tcp:accept(Listener),
    Worker = spawn(fun() -> receive go -> inet:setopts(There, [{active, 10}]), answer(There) end end),
    ok = gen_tcp:controlling_process(There, Worker),
    Worker ! go,
    accept(Listener).

answer(There) ->
    receive
        {tcp, There, Data} -> ok = gen_tcp:send(There, Data), answer(There);
        {tcp_passive, There} -> inet:setopts(There, [{active, 10}]), answer(There);
        {tcp_closed, There} -> gen_tcp:close(There)
    end.

ask(Address, Port, Size) ->
    Data = rand:bytes(Size + 1),
    {ok, Here} = gen_tcp:connect(Address, Port, [binary, {active, false}, {exit_on_close, false}]),
    spawn_link(fun() -> send(Here, Data), ok = gen_tcp:shutdown(Here, write) end),
    Back = gather(Here, []),
    gen_tcp:close(Here),
    case Back of Data -> 1; _ -> 0 end.

send(Here, <<Part:50000/binary, Rest/binary>>) -> ok = gen_tcp:send(Here, Part), send(Here, Rest);
send(Here, Rest) -> ok = gen_tcp:send(Here, Rest).

gather(Here, Parts) ->
    case gen_tcp:recv(Here, 0, 20000) of
        {ok, Data} -> gather(Here, [Data | Parts]);
        {error, closed} -> iolist_to_binary(lists:reverse(Parts))
    end.
